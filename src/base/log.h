/* base/log: messages to stderr. Colour only on a terminal (and not when NO_COLOR is set).
 *
 * The levels and functions are public (rl_log and its neighbours in redlite.h): quiet is RL_LOG_ERROR. A message is one write
 * with a newline added, so lines of several threads do not mix. */
#ifndef RL_BASE_LOG_H
#define RL_BASE_LOG_H

#include "base/error.h"

#endif
