/* CSV and TSV (RFC 4180): where a row ends, and what its fields are. A quote opens a field only as its first character; elsewhere
   in a field that is not quoted it stands for itself. */
#ifndef EBB_STORAGE_CSV_H
#define EBB_STORAGE_CSV_H

#include "base/buf.h"
#include "base/status.h"

enum csv_state { CSV_START, CSV_PLAIN, CSV_QUOTED, CSV_QUOTE /* within quotes, the last byte was one */ };

struct csv_scan {
    enum csv_state state; /* CSV_START where a row begins */
    char delimiter;
};

/* Goes on with a row. 1: it ends in [p, p + len), *used counts up to and with its '\n', and the state is CSV_START again. 0: it does not,
   *used is len. However a row is cut into pieces, the answer is the same. */
int csv_scan(struct csv_scan *c, const char *p, size_t len, size_t *used);

struct csv_field {
    const char *data;
    size_t len;
};

struct csv_row {
    struct csv_field *fields; /* the first `held` ones */
    size_t held, cap;
    size_t count;             /* all */
    size_t bad;               /* 1 + the field that has text behind its closing quote, or lacks that quote; 0: none */
    struct buf text;          /* fields whose doubled quotes were made single */
};

/* Takes one row, without its line end, apart; fields from `most` on are counted, not held. They point into p and row->text: valid while
   both stand. */
MUST_USE enum status csv_parse(struct csv_row *row, const char *p, size_t len, char delimiter, size_t most, struct err *e);
void csv_release(struct csv_row *row);

#endif
