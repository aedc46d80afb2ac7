/* text/format: what was learnt from a chat template. */
#ifndef RL_TEXT_FORMAT_H
#define RL_TEXT_FORMAT_H

#include "text/buffer.h"
#include "text/tools.h"

struct rl_chat_format {
    rl_tool_style style;
    rl_thinking thinking;
    bool can_skip_thinking;
    bool strips_reasoning;    /* the template knows <think>: reasoning of old turns leaves the prompt */
    bool knows_tools;         /* the texts below are the file's */
    bool results_break_after; /* tool results: newline behind </tool_response> instead of before <tool_response> */
    rl_buffer before_tools;   /* ends with <tools> */
    rl_buffer after_tools;    /* begins with a newline and </tools> */
    rl_buffer identity;       /* XML: stands in for the system message when there are tools but none; may be empty */
};

#endif
