/* base/log: messages to stderr. Colour only on a terminal (and not when NO_COLOR is set). */
#ifndef RL_BASE_LOG_H
#define RL_BASE_LOG_H

#include "base/error.h"

typedef enum rl_log_level { RL_LOG_ERROR, RL_LOG_WARN, RL_LOG_INFO, RL_LOG_DEBUG } rl_log_level;

/* Messages above `level` are dropped. Default RL_LOG_INFO. Quiet is RL_LOG_ERROR. */
void rl_log_set_level(rl_log_level level);
rl_log_level rl_log_get_level(void);

/* Thread safe; one write per message, newline added. */
void rl_log(rl_log_level level, const char *fmt, ...) RL_PRINTF(2, 3);

#endif
