/* text/tools: conversations with tools and reasoning, and answers read while they are generated. The interface is public
 * ("tools and reasoning" in redlite.h). */
#ifndef RL_TEXT_TOOLS_H
#define RL_TEXT_TOOLS_H

#include "redlite.h"

#endif
