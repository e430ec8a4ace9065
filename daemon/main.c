#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "daemon/loop.h"

int main(int argc, char **argv)
{
    static struct config config; /* one for the whole process: threads read it */
    struct err e;
    char **words = calloc((size_t)argc + 1, sizeof *words); /* opt_parse moves operands about */
    log_init("ebbd", LOG_INFO);
    for (int i = 0; words && i < argc; i++)
        words[i] = argv[i];
    enum status st = words ? config_init(&config, &e) : err_nomem(&e, "options");
    if (st == ST_OK)
        st = config_parse(&config, argc, argv, &e);
    if (st != ST_OK) {
        if (st != ST_END)
            fprintf(stderr, "ebbd: %s\n", e.text);
        config_release(&config);
        free(words);
        return status_exit_code(st);
    }
    log_init("ebbd", config.log_level);
    struct rlimit files; /* each worker and client is a descriptor */
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    setenv("UV_THREADPOOL_SIZE", "8", 0); /* a model that is being read must not keep commits waiting */
    int code = loop_run(&config, argc, words);
    free(words);
    return code;
}
