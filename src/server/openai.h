/* server/openai: what chat completions and completions share. */
#ifndef RL_SERVER_OPENAI_H
#define RL_SERVER_OPENAI_H

#include "internal.h"

/* Usage of a job so far. */
json_t *srv_openai_usage(const srv_job *j);
/* Speeds, as a member that other clients ignore. */
json_t *srv_timings(const srv_job *j);
/* "data: {...}\n\n"; takes the reference. */
void srv_sse_data(srv_job *j, json_t *o);
/* The end of a stream of the OpenAI kind: an error as data, and the last line. */
void srv_openai_stream_error(srv_job *j, const srv_error *e);
/* A comment, which clients skip. */
void srv_sse_progress(srv_job *j, const char *what, uint32_t done, uint32_t total);
const char *srv_openai_finish(const srv_choice *c);
/* Log probabilities that were not sent yet, as an array; null when none are wanted. */
json_t *srv_new_logprobs(srv_choice *c);

#endif
