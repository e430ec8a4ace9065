/* What a call came to: a code that the program acts on, and words that a person acts on.
   Every fallible function returns `enum status` and takes `struct err *e` last; e is filled when, and only when, it fails.
   Messages: lower case, what failed first, the subject quoted, what to do about it, no full stop. */
#ifndef EBB_BASE_STATUS_H
#define EBB_BASE_STATUS_H

#include <stdarg.h>
#include <stdnoreturn.h>

/* code, exit code of a program that ends with it, meaning */
#define STATUS_MAP(X)                                                                                                            \
    X(OK, 0, "ok")                                                                                                           \
    X(USER, 2, "the command, job or input is wrong")                                                                         \
    X(ENV, 1, "the environment failed: disk, permission, network")                                                           \
    X(NOMEM, 1, "out of memory")                                                                                             \
    X(CORRUPT, 1, "bytes at rest or on the wire are not what they should be")                                                \
    X(NOT_FOUND, 2, "no such thing")                                                                                         \
    X(AGAIN, 1, "not now, try again")                                                                                        \
    X(END, 0, "no more")

enum status {
#define X(name, exit_code, words) ST_##name,
    STATUS_MAP(X)
#undef X
};

#define MUST_USE __attribute__((warn_unused_result))
#define PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

struct err {
    enum status code;
    char text[1024];
};

/* Fills e (which may be NULL) and returns code, so that `return err_set(e, ST_USER, "...")` reads well. */
enum status err_set(struct err *e, enum status code, const char *fmt, ...) PRINTF(3, 4);
/* The same with ": <strerror(errnum)>" behind it. */
enum status err_errno(struct err *e, enum status code, int errnum, const char *fmt, ...) PRINTF(4, 5);
/* "out of memory", naming what it was for. Returns ST_NOMEM. */
enum status err_nomem(struct err *e, const char *what);
/* Puts words in front of what e says already: "<prefix>: <text>". Returns e->code. */
enum status err_prefix(struct err *e, const char *fmt, ...) PRINTF(2, 3);
int status_exit_code(enum status code);
const char *status_name(enum status code);

/* The one guard with a hidden return. */
#define TRY(call)                                                                                                                \
    do {                                                                                                                         \
        enum status try_ = (call);                                                                                               \
        if (try_ != ST_OK)                                                                                                       \
            return try_;                                                                                                         \
    } while (0)

/* A broken invariant of our own: says where, and aborts. */
noreturn void bug_at(const char *file, int line, const char *fmt, ...) PRINTF(3, 4);
#define BUG(...) bug_at(__FILE__, __LINE__, __VA_ARGS__)
#define BUG_IF(cond, ...)                                                                                                        \
    do {                                                                                                                         \
        if (__builtin_expect(!!(cond), 0))                                                                                       \
            BUG(__VA_ARGS__);                                                                                                    \
    } while (0)

#endif
