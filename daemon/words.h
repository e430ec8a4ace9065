/* Texts that came from elsewhere, made fit for JSON and terminals. */
#ifndef EBB_DAEMON_WORDS_H
#define EBB_DAEMON_WORDS_H

#include <jansson.h>

/* Bytes that are not UTF-8, and control characters, become '?'. */
void words_tidy(char *s);
/* The text as a JSON string; NULL when memory is out. */
json_t *words_json(const char *s);

#endif
