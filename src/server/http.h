/* server/http: what the routes share with the HTTP daemon. */
#ifndef RL_SERVER_HTTP_H
#define RL_SERVER_HTTP_H

#include "internal.h"

/* One request on one connection. */
typedef struct srv_exchange {
    rl_server *server;
    struct MHD_Connection *connection;
    const struct srv_route *route;
    const char *url;
    srv_buf body;
    srv_error error; /* found before the body was complete */
    bool complete;
    srv_job *job;
    bool streaming;
} srv_exchange;

typedef struct srv_answer {
    int status;
    const char *type;
    srv_buf text;
    const void *constant; /* instead of text: bytes that live for ever */
    size_t constant_size;
} srv_answer;

typedef struct srv_route {
    const char *method, *path; /* a path that ends with * covers everything below */
    bool open;                 /* needs no key */
    const srv_api *api;        /* generates */
    bool (*answer)(srv_exchange *x, json_t *body, srv_answer *out, srv_error *e); /* or answers at once */
} srv_route;

extern const srv_route srv_routes[]; /* path NULL ends */

#endif
