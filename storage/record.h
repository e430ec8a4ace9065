/* From a raw record to what a model is given. */
#ifndef EBB_STORAGE_RECORD_H
#define EBB_STORAGE_RECORD_H

#include "storage/reader.h"

struct decoder_opts {
    enum format format;
    const char *field;        /* the text's field or column; NULL: in objects `text`, else `content`, else the only one that is a
                                 string; in CSV the column `text`, else the only column */
    const char *pair;         /* NULL: none; the field or column of the second text of a pair */
    const char *id;           /* NULL: `id`, else `custom_id`, where there */
    const char *const *keep;  /* fields passed through. LINES have no fields: naming any of these is ST_USER */
    size_t keep_count;
    int no_text;              /* the model takes something else of the record: only id and kept fields are looked for; text is empty */
};

struct record {
    const char *text;         /* valid UTF-8 (of images and arrays: bytes); valid until the next decode */
    size_t text_len;
    const char *pair;         /* likewise; NULL when none is asked for */
    size_t pair_len;
    const char *id_json;      /* the id as JSON ("17", "\"a\""), as the record has it: a string or a number, of CSV always a string; NULL: it
                                 has none, or one of another type, or an empty cell */
    size_t id_len;
    const char *keep_json;    /* `,"stars":5,"lang":"de"`: ready to stand behind another member; of JSON as the
                                 record has it, of CSV strings; one that an object lacks is null */
    size_t keep_len;
    enum record_error error;  /* text is NULL then; id_json where it could still be read */
    char message[256];        /* names field or column, and the place in the record */
};

struct decoder; /* one per thread */

/* columns: of this source, for CSV and TSV; else NULL. ST_USER: "no column 'body' (columns: ...; did you mean ...)", for field, id and
   keep; put the source's name in front. */
MUST_USE enum status decoder_open(const struct decoder_opts *o, const struct columns *columns, struct decoder **out, struct err *e);
void decoder_close(struct decoder *d);
/* Decodes one raw record (its error, if it has one, is passed on). Only ST_NOMEM fails. */
MUST_USE enum status decoder_run(struct decoder *d, const struct raw *raw, struct record *out, struct err *e);

#endif
