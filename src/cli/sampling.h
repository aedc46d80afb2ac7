/* cli/sampling: the sampling options of the commands that produce text. */
#ifndef RL_CLI_SAMPLING_H
#define RL_CLI_SAMPLING_H

#include "cli.h"

extern const cli_option cli_sampling_options[];

/* What the model file recommends (else the defaults), overridden by the options given. bias must hold CLI_BIASES_MAX entries
 * and outlive the use of p. */
void cli_fill_sampling(const rl_engine *e, rl_sampling *p, rl_logit_bias *bias);

#endif
