/* What a person sees of a job under way: figures taken from JOB (docs/api.md), and lines made of them. No terminal in here. */
#ifndef EBB_CLIENT_PROGRESS_H
#define EBB_CLIENT_PROGRESS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct view {
    uint64_t job;
    char name[201], state[16], reason[512], waits_for[256];
    int passing;           /* held by something that passes by itself, e.g. a full disk */
    double fraction;       /* 0..1; never goes back, see view_read */
    uint64_t records_done, rows, errors, quarantined, bytes_done, bytes_total;
    double records_guess;  /* -1: not known */
    uint64_t records_total; /* counted, not guessed; 0: not known. view_read clears it */
    double records_per_s;
    double seconds_left;   /* -1: not known */
    uint64_t workers, workers_wanted;
};

/* Keeps the largest fraction seen: v holds what was read last, or zeroes. */
void view_read(struct view *v, const json_t *job);
int view_over(const struct view *v);    /* done or canceled */
int view_stands(const struct view *v);  /* held or paused: nothing goes on by itself */

/* "  12 %  612,000 of about 5.1 M   9,840/s   7 min 36 s left   3 errors   1 worker   [=======>      ]", at most `width` columns; what matters least
   is left out where there is no room. width 0: no limit and no bar, for lines that are piped. Returns out. */
char *progress_line(const struct view *v, int width, char *out, size_t size);
int progress_percent(const struct view *v); /* rounded down; 100 only when all records are done */

/* A number that is guessed, in as many digits as a guess is worth: "60,000", "5.1 M". out has UNITS_MAX bytes. */
char *guess_words(char *out, double n);

#endif
