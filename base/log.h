/* One line per state change: ids first, then what, then why. Goes to stderr; under systemd with the <N> priority prefix. */
#ifndef EBB_BASE_LOG_H
#define EBB_BASE_LOG_H

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

void log_init(const char *program, enum log_level level); /* program is kept, not copied */
void log_line(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warn(...) log_line(LOG_WARN, __VA_ARGS__)
#define log_info(...) log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)

#endif
