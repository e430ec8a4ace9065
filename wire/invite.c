/* "ebb1", then 65 bytes in groups of five bits (version and role, the daemon's public key, the secret key), then six groups of checksum, as BIP 350 has
   it: any three wrong characters are found, and of more all but one in 2^30. */
#include "wire/invite.h"

#include <ctype.h>
#include <stdint.h>
#include <string.h>
#include <zmq.h>

#define VERSION 1
#define PREFIX "ebb1"
#define BYTES 65
#define GROUPS 104 /* 65 * 8 / 5 */
#define CHECKS 6
#define LENGTH (4 + GROUPS + CHECKS)
#define BECH32M 0x2bc830a3u

static const char letters[] = "qpzry9x8gf2tvdw0s3jn54khce6mua7l";

static uint32_t fold(uint32_t sum, uint8_t group)
{
    static const uint32_t generator[] = {0x3b6a57b2, 0x26508e6d, 0x1ea119fa, 0x3d4233dd, 0x2a1462b3};
    uint32_t top = sum >> 25;
    sum = (sum & 0x1ffffff) << 5 ^ group;
    for (int i = 0; i < 5; i++)
        sum ^= (top >> i & 1) ? generator[i] : 0;
    return sum;
}

static uint32_t checksum(const uint8_t *groups, size_t n)
{
    uint32_t sum = 1;
    for (const char *p = "ebb"; *p; p++)
        sum = fold(sum, (uint8_t)*p >> 5);
    sum = fold(sum, 0);
    for (const char *p = "ebb"; *p; p++)
        sum = fold(sum, (uint8_t)*p & 31);
    for (size_t i = 0; i < n; i++)
        sum = fold(sum, groups[i]);
    return sum;
}

void invite_write(const struct invite *v, char text[INVITE_TEXT])
{
    uint8_t bytes[BYTES], groups[GROUPS + CHECKS] = {0};
    bytes[0] = (uint8_t)(VERSION << 4 | (int)v->role);
    BUG_IF(!zmq_z85_decode(bytes + 1, v->keys.server_key) || !zmq_z85_decode(bytes + 33, v->keys.secret_key), "an invitation with keys that are none");
    for (size_t bit = 0; bit < BYTES * 8; bit++)
        if (bytes[bit / 8] >> (7 - bit % 8) & 1)
            groups[bit / 5] |= (uint8_t)(16 >> bit % 5);
    uint32_t sum = checksum(groups, GROUPS + CHECKS) ^ BECH32M; /* over six zeros */
    for (int i = 0; i < CHECKS; i++)
        groups[GROUPS + i] = sum >> 5 * (5 - i) & 31;
    memcpy(text, PREFIX, 4);
    for (size_t i = 0; i < GROUPS + CHECKS; i++)
        text[4 + i] = letters[groups[i]];
    text[LENGTH] = 0;
    explicit_bzero(bytes, sizeof bytes);
    explicit_bzero(groups, sizeof groups);
}

static enum status groups_of(const char *text, uint8_t groups[GROUPS + CHECKS], struct err *e)
{
    size_t n = strlen(text);
    for (size_t i = 0; i < 4; i++)
        if (i >= n || tolower((unsigned char)text[i]) != PREFIX[i])
            return err_set(e, ST_USER, "'%.20s%s' is no invitation: those begin with '%s', see 'ebb invite'", text, n > 20 ? "..." : "", PREFIX);
    if (n != LENGTH)
        return err_set(e, ST_USER, "the invitation has %zu characters and should have %d: some %s", n, LENGTH,
                       n < LENGTH ? "are missing, was it copied whole" : "are too many");
    for (size_t i = 4; i < n; i++) {
        const char *at = strchr(letters, tolower((unsigned char)text[i]));
        if (!at)
            return err_set(e, ST_USER, "the invitation has a typo: its character %zu is '%c', which none has", i + 1, isprint((unsigned char)text[i]) ? text[i] : '?');
        groups[i - 4] = (uint8_t)(at - letters);
    }
    if (checksum(groups, GROUPS + CHECKS) != BECH32M)
        return err_set(e, ST_USER, "the invitation has a typo: its checksum is wrong; copy it once more");
    return ST_OK;
}

enum status invite_read(const char *text, struct invite *out, struct err *e)
{
    uint8_t groups[GROUPS + CHECKS], bytes[BYTES] = {0};
    *out = (struct invite){0};
    TRY(groups_of(text, groups, e));
    for (size_t bit = 0; bit < BYTES * 8; bit++)
        if (groups[bit / 5] >> (4 - bit % 5) & 1)
            bytes[bit / 8] |= (uint8_t)(128 >> bit % 8);
    enum status st = ST_OK;
    out->role = (enum keys_role)(bytes[0] & 15);
    if (bytes[0] >> 4 != VERSION || (out->role != KEYS_NODE && out->role != KEYS_CLIENT))
        st = err_set(e, ST_USER, "the invitation is of another version of ebb: install the same version here as on the daemon's machine");
    if (st == ST_OK && (!zmq_z85_encode(out->keys.server_key, bytes + 1, 32) || !zmq_z85_encode(out->keys.secret_key, bytes + 33, 32)))
        st = err_set(e, ST_USER, "the invitation cannot be read");
    if (st == ST_OK)
        st = keys_derive(&out->keys, e);
    explicit_bzero(bytes, sizeof bytes);
    explicit_bzero(groups, sizeof groups);
    return st;
}
