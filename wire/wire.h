/* Messages to bytes and back. The types are those that protoc-c makes of wire/ebb.proto. */
#ifndef EBB_WIRE_WIRE_H
#define EBB_WIRE_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "wire/ebb.pb-c.h"

#define WIRE_VERSION 1
#define WIRE_VERSION_MIN 1
#define WIRE_MAX_MESSAGE (64u << 20) /* bytes; longer ones are refused unread */

/* body: a message of the envelope, by its case; the caller keeps it. Clears and fills out. */
MUST_USE enum status wire_encode(Ebb__Envelope__BodyCase which, void *body, struct buf *out, struct err *e);
/* ST_CORRUPT: not a message of ours. The caller frees with wire_free. */
MUST_USE enum status wire_decode(const void *data, size_t len, Ebb__Envelope **out, struct err *e);
void wire_free(Ebb__Envelope *m);

#endif
