/* Does each component of a tokenizer.json do what the reference's does, on examples small enough to read? (families_test.c compares
   whole tokenizers.) And does a hostile file or text cost no more than it should? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "tests/lib/files.h"
#include "workers/text/bpe.h"
#include "workers/text/tokenizer.h"

static char dir[] = "/tmp/ebb-tokenizer-XXXXXX";
static struct tok_scratch *scratch;
static struct tokenizer *tok;

static void put_file(const char *name, const char *data, size_t len)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    files_put(path, data, len);
}

static void drop_files(void)
{
    static const char *const names[] = {"tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json"};
    for (size_t i = 0; i < 4; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
}

static void reopen(void)
{
    struct err e = {0};
    tokenizer_free(tok);
    tok = NULL;
    if (tokenizer_open(dir, &tok, &e) != ST_OK)
        fail_msg("%s", e.text);
}

static char *whole(const char *model, const char *norm, const char *split, const char *more)
{
    char *all = mem_printf("{\"version\":\"1.0\",%s\"normalizer\":%s,\"pre_tokenizer\":%s,\"model\":%s}", more ? more : "", norm ? norm : "null",
                           split ? split : "null", model);
    assert_non_null(all);
    return all;
}

static void use(const char *model, const char *norm, const char *split, const char *more)
{
    char *all = whole(model, norm, split, more);
    drop_files();
    put_file("tokenizer.json", all, strlen(all));
    mem_free(all);
    reopen();
}

/* The tokens of text, with '|' between them, are `want`. */
static void gives(const char *text, const char *want)
{
    struct tok_result r;
    struct err e = {0};
    char got[1024] = "";
    size_t n = 0;
    if (tokenizer_encode(tok, scratch, text, strlen(text), 0, &r, &e) != ST_OK)
        fail_msg("%s", e.text);
    for (uint32_t i = 0; i < r.count && n < 900; i++)
        n += (size_t)snprintf(got + n, sizeof got - n, i ? "|%s" : "%s", tokenizer_token(tok, r.ids[i]));
    assert_string_equal(got, want);
}

/* The pieces that a pre-tokenizer makes: a model that knows nothing gives each as one unknown token, and its span tells which. */
static void cuts(const char *split, const char *text, const char *want)
{
    struct tok_result r;
    struct err e = {0};
    char got[512] = "";
    size_t n = 0;
    use("{\"type\":\"WordLevel\",\"unk_token\":\"?\",\"vocab\":{\"?\":0}}", NULL, split, NULL);
    struct tok_input in = {.text = text, .len = strlen(text), .spans = 1};
    if (tokenizer_encode_input(tok, scratch, &in, &r, &e) != ST_OK)
        fail_msg("%s", e.text);
    for (uint32_t i = 0; i < r.count && n < 400; i++)
        n += (size_t)snprintf(got + n, sizeof got - n, i ? "|%.*s" : "%.*s", (int)(r.spans[i].end - r.spans[i].start), text + r.spans[i].start);
    assert_string_equal(got, want);
}

/* What a normalizer makes of a text, told by a model whose tokens are single characters. */
static void normal(const char *norm, const char *text, const char *want)
{
    static const char vocab[] = "{\"type\":\"BPE\",\"merges\":[],\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"a\":1,\"b\":2,\" \":3,\"e\":4,\"A\":5,"
                                "\"\\u00e9\":6,\"_\":7,\"1\":8,\"\\u0301\":9}}";
    struct tok_result r;
    struct err e = {0};
    char got[512] = "";
    use(vocab, norm, NULL, NULL);
    if (tokenizer_encode(tok, scratch, text, strlen(text), 0, &r, &e) != ST_OK)
        fail_msg("%s", e.text);
    for (uint32_t i = 0; i < r.count; i++)
        strcat(got, tokenizer_token(tok, r.ids[i]));
    if (strcmp(got, want) != 0)
        fail_msg("'%s' becomes '%s', not '%s', by %s", text, got, want, norm);
}

#define REGEX(expr, behavior, invert)                                                                                            \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" expr "\"},\"behavior\":\"" behavior "\",\"invert\":" invert "}"

static void test_splits(void **state)
{
    (void)state;
    cuts("null", "a b", "a b");
    cuts(REGEX("-", "Removed", "false"), "the-final--countdown", "the|final|countdown");
    cuts(REGEX("-", "Isolated", "false"), "the-final--countdown", "the|-|final|-|-|countdown");
    cuts(REGEX("-", "MergedWithPrevious", "false"), "the-final--countdown", "the-|final-|-|countdown");
    cuts(REGEX("-", "MergedWithNext", "false"), "the-final--countdown", "the|-final|-|-countdown");
    cuts(REGEX("-", "Contiguous", "false"), "the-final--countdown", "the|-|final|--|countdown");
    cuts(REGEX("[a-z]+", "Removed", "true"), "the-final--countdown", "the|final|countdown");
    cuts(REGEX("[a-z]+", "Isolated", "true"), "1a-b", "1|a|-|b");
    cuts("{\"type\":\"Split\",\"pattern\":{\"String\":\".\"},\"behavior\":\"Isolated\",\"invert\":false}", "a.b..", "a|.|b|.|.");
    cuts("{\"type\":\"Punctuation\"}", "a,b\u3002!", "a|,|b|\u3002|!");
    cuts("{\"type\":\"Punctuation\",\"behavior\":\"Contiguous\"}", "a,\u3002!b", "a|,\u3002!|b");
    cuts("{\"type\":\"Digits\",\"individual_digits\":true}", "a12\u00bdb", "a|1|2|\u00bd|b");
    cuts("{\"type\":\"Digits\",\"individual_digits\":false}", "a12\u00bdb", "a|12\u00bd|b");
    cuts("{\"type\":\"CharDelimiterSplit\",\"delimiter\":\"_\"}", "a__b_", "a|b");
    cuts("{\"type\":\"Whitespace\"}", "Hey, you!? \u00e9a", "Hey|,|you|!?|\u00e9a");
    cuts("{\"type\":\"WhitespaceSplit\"}", "Hey,\u3000you ", "Hey,|you");
    cuts("{\"type\":\"BertPreTokenizer\"}", "Hey, you", "Hey|,|you");
    cuts("{\"type\":\"UnicodeScripts\"}", "\u3069\u3053\u4f55 Apples\u3053", "\u3069\u3053\u4f55 |Apples|\u3053");
    cuts("{\"type\":\"FixedLength\",\"length\":2}", "ab\u00e9d5", "ab|\u00e9d|5");
    cuts("{\"type\":\"ByteLevel\",\"add_prefix_space\":false}", "Hi  there's 12", "Hi| | there|'s| 12");
    cuts("{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}", "Hi  there", "Hi  there");
    cuts("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"},{\"type\":\"Digits\",\"individual_digits\":true}]}",
         "a1 22", "a|1|2|2");
}

#define META(scheme, split) "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"" scheme "\",\"split\":" split "}"
#define WORDS "{\"type\":\"WordLevel\",\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"_a\":1,\"_b\":2,\"_\":3,\"a\":4,\"_a_b\":5}}"

static void test_metaspace(void **state)
{
    (void)state;
    static const char x[] = "\"added_tokens\":[{\"id\":6,\"content\":\"<x>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                            "\"normalized\":false,\"special\":true}],";
    use(WORDS, NULL, META("always", "true"), x);
    gives("a b", "_a|_b");
    gives(" a  b", "_a|_|_b");
    gives("a<x>a", "_a|<x>|_a");
    use(WORDS, NULL, META("first", "true"), x);
    gives("a<x>a", "_a|<x>|a");
    gives("<x>a", "<x>|a");
    use(WORDS, NULL, META("never", "true"), x);
    gives("a<x>a b", "a|<x>|a|_b");
    use(WORDS, NULL, META("always", "false"), x);
    gives("a b", "_a_b");
}

/* A table of 'A' to 'a', tab to a space, e-acute to e, and the ligature fi to 'ab'. */
static char *charsmap(void)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    static const struct {
        const char *from;
        uint32_t value;
    } keys[] = {{"A", 0}, {"\t", 2}, {"\xc3\xa9", 4}, {"\xef\xac\x81", 6}};
    static const char text[] = "a\0 \0e\0ab";
    enum { UNITS = 4096 };
    static uint32_t unit[UNITS];
    uint32_t next = 1; /* each state has 256 cells of its own */
    memset(unit, 0, sizeof unit);
    unit[0] = 256u << 10;
    for (size_t k = 0; k < 4; k++) {
        uint32_t at = 256;
        for (const char *p = keys[k].from; *p; p++) {
            at ^= (uint8_t)*p;
            uint32_t to = ++next * 256; /* an offset is told relative to where it stands */
            unit[at] = (uint8_t)*p | (at ^ to) << 10 | (p[1] ? 0u : 0x100u);
            at = to;
        }
        unit[at] = keys[k].value;
    }
    size_t n = 4 + sizeof unit + sizeof text;
    uint8_t *raw = calloc(1, n + 3);
    char *out = malloc(n * 4 / 3 + 8);
    assert_true(raw && out);
    for (size_t i = 0; i < 4; i++)
        raw[i] = (uint8_t)(sizeof unit >> 8 * i);
    memcpy(raw + 4, unit, sizeof unit); /* little-endian, as the machines that run this */
    memcpy(raw + 4 + sizeof unit, text, sizeof text);
    size_t o = 0;
    for (size_t i = 0; i < n; i += 3) {
        uint32_t three = (uint32_t)raw[i] << 16 | (uint32_t)raw[i + 1] << 8 | raw[i + 2];
        for (int s = 18; s >= 0; s -= 6)
            out[o++] = digits[three >> s & 63];
    }
    out[o] = 0;
    free(raw);
    return out;
}

static void test_normalizers(void **state)
{
    (void)state;
    normal("{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":false}", " \t a b ", "a b ");
    normal("{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true}", "\u3000a b\n", "a b");
    normal("{\"type\":\"Prepend\",\"prepend\":\"_\"}", "a", "_a");
    normal("{\"type\":\"Prepend\",\"prepend\":\"_\"}", "", "");
    normal("{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"_\"}", "a  b", "a__b");
    normal("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\"_\"}", "a  b    a b", "a_b_a b");
    normal("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\\\\d+\"},\"content\":\"\"}", "a12b345", "ab");
    normal("{\"type\":\"Nmt\"}", "a\u200bb\x7f\tb\x01", "a b b");
    normal("{\"type\":\"NFD\"}", "\u00e9", "e\u0301");
    normal("{\"type\":\"NFKC\"}", "\uff41e\u0301", "a\u00e9");
    normal("{\"type\":\"Lowercase\"}", "AB", "ab");
    normal("{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFD\"},{\"type\":\"StripAccents\"},{\"type\":\"Prepend\",\"prepend\":\"1\"},"
           "{\"type\":\"Lowercase\"}]}",
           "\u00e9A", "1ea");
    char *map = charsmap(), *norm = mem_printf("{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"%s\"}", map);
    normal(norm, "bAb", "bab");
    normal(norm, "A\tA", "a a");
    normal(norm, "b\u00e9b", "beb");
    normal(norm, "\ufb01", "ab");
    normal(norm, "A\u0301A", "aa");   /* the mark is in the cluster of a letter that is replaced */
    normal(norm, "b\u0301A", "b\u0301a");
    normal(norm, "A\u0301\u0301\u0301A", "a\u0301\u0301\u0301a"); /* a long cluster is taken apart */
    free(map);
    mem_free(norm);
}

#define BPE(flags, vocab, merges) "{\"type\":\"BPE\"," flags "\"vocab\":{" vocab "},\"merges\":[" merges "]}"
#define ABC "\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"bc\":4,\"abc\":5,\"?\":6"

static void test_bpe(void **state)
{
    (void)state;
    use(BPE("", ABC, "\"a b\",\"b c\""), NULL, NULL, NULL);
    gives("abc", "ab|c");
    gives("bcabc", "bc|ab|c");
    gives("axb", "ab"); /* without an unknown token what is unknown is left out */
    use(BPE("", ABC, "[\"b\",\"c\"],[\"a\",\"b\"],[\"a\",\"bc\"]"), NULL, NULL, NULL);
    gives("abc", "abc");
    gives("abab", "ab|ab");
    use(BPE("\"unk_token\":\"?\",", ABC, "\"a b\""), NULL, NULL, NULL);
    gives("axyb", "a|?|?|b");
    use(BPE("\"unk_token\":\"?\",\"fuse_unk\":true,", ABC, "\"a b\""), NULL, NULL, NULL);
    gives("axyb\u00e9", "a|?|b|?");
    use(BPE("\"unk_token\":\"?\",\"byte_fallback\":true,", ABC ",\"<0xC3>\":7,\"<0xA9>\":8", "\"a b\""), NULL, NULL, NULL);
    gives("a\u00e9ab\u00e8", "a|<0xC3>|<0xA9>|ab|?"); /* all bytes of a character or none */
    use(BPE("\"end_of_word_suffix\":\"</w>\",", "\"a\":0,\"b\":1,\"a</w>\":2,\"b</w>\":3,\"ab</w>\":4", "\"a b</w>\""), NULL,
        "{\"type\":\"WhitespaceSplit\"}", NULL);
    gives("ab aab ba", "ab</w>|a|ab</w>|b|a</w>");
    use(BPE("\"continuing_subword_prefix\":\"##\",", "\"a\":0,\"##b\":1,\"ab\":2,\"##a\":3", "\"a ##b\""), NULL, NULL, NULL);
    gives("aba", "ab|##a");
    use(BPE("\"ignore_merges\":true,", ABC, "\"b c\""), NULL, "{\"type\":\"WhitespaceSplit\"}", NULL);
    gives("abc abcb", "abc|a|bc|b");
    use(BPE("", "\"\\u0120\":0,\"h\":1,\"i\":2,\"hi\":3,\"\\u0120hi\":4,\"\\u00c3\":5,\"\\u00a9\":6,\"\\u00c3\\u00a9\":7,\"!\":8",
            "\"h i\",\"\\u0120 hi\",\"\\u00c3 \\u00a9\""),
        NULL, "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", NULL);
    gives("hi hi!\u00e9", "\u0120hi|\u0120hi|!|\u00c3\u00a9");
    use(BPE("", ABC, "\"a b\""), NULL, NULL, "\"truncation\":{\"direction\":\"Left\",\"max_length\":3},");
    struct tok_result r;
    struct err e;
    assert_int_equal(tokenizer_encode(tok, scratch, "abcabb", 6, 2, &r, &e), ST_OK);
    assert_int_equal(r.count, 2);
    assert_true(r.truncated && r.ids[0] == 3 && r.ids[1] == 1);
    use(BPE("\"unk_token\":\"!\",", ABC, "\"a b\""), NULL, NULL, NULL);
    assert_int_equal(tokenizer_encode(tok, scratch, "abx", 3, 0, &r, &e), ST_USER);
    assert_string_equal(e.text, "the tokenizer does not know 'x' and its vocabulary lacks the unknown token '!'");
    gives("ab", "ab");
}

static void test_alphabet(void **state)
{
    (void)state;
    for (int b = 0; b < 256; b++)
        assert_int_equal(bytelevel_byte(bytelevel_char((uint8_t)b)), b);
    assert_int_equal(bytelevel_char(' '), 0x120);
    assert_int_equal(bytelevel_char('\n'), 0x10A);
    assert_int_equal(bytelevel_byte(0x144), -1);
    assert_int_equal(bytelevel_byte(' '), -1);
}

#define UNI(unk, vocab) "{\"type\":\"Unigram\",\"unk_id\":" unk ",\"vocab\":[" vocab "]}"

static void test_unigram(void **state)
{
    (void)state;
    use(UNI("0", "[\"<unk>\",0],[\"a\",0],[\"b\",0],[\"c\",0],[\"d\",0],[\"cd\",1],[\"ab\",2],[\"abc\",5],[\"abcd\",10]"), NULL, NULL, NULL);
    gives("abcdacdxx", "abcd|a|cd|<unk>");
    gives("abcabxcb", "abc|ab|<unk>|c|b");
    gives("", "");
    use("{\"type\":\"Unigram\",\"unk_id\":0,\"byte_fallback\":true,\"vocab\":[[\"<unk>\",0],[\"a\",-1],[\"<0xC3>\",0],[\"<0xA9>\",0]]}", NULL, NULL,
        NULL);
    gives("a\u00e9a\u00e8", "a|<0xC3>|<0xA9>|a|<unk>");
    use(UNI("null", "[\"a\",-1.5]"), NULL, NULL, NULL);
    gives("aa", "a|a");
    struct tok_result r;
    struct err e;
    assert_int_equal(tokenizer_encode(tok, scratch, "ab", 2, 0, &r, &e), ST_USER);
    assert_string_equal(e.text, "the tokenizer does not know 'b' and has no unknown token");
}

/* Two texts: their tokens, types, parts; and how both are cut. */
static void test_pairs(void **state)
{
    (void)state;
    use("{\"type\":\"WordLevel\",\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"[\":1,\"]\":2,\"a\":3,\"b\":4}}", NULL, "{\"type\":\"WhitespaceSplit\"}",
        "\"post_processor\":{\"type\":\"BertProcessing\",\"sep\":[\"]\",2],\"cls\":[\"[\",1]},");
    assert_int_equal(tokenizer_special_count(tok), 2);
    assert_int_equal(tokenizer_pair_special_count(tok), 3);
    assert_int_equal(tokenizer_id(tok, "b"), 4);
    assert_int_equal(tokenizer_id(tok, "c"), -1);
    assert_null(tokenizer_token(tok, 5));
    assert_null(tokenizer_token(tok, -1));
    static const struct {
        uint32_t max;
        enum tok_cut cut;
        const char *ids;
    } list[] = {
        {0, TOK_LONGEST_FIRST, "13332444442"}, {11, TOK_LONGEST_FIRST, "13332444442"}, {10, TOK_LONGEST_FIRST, "1333244442"},
        {9, TOK_LONGEST_FIRST, "133324442"},   {8, TOK_LONGEST_FIRST, "13324442"},     {7, TOK_LONGEST_FIRST, "1332442"},
        {10, TOK_ONLY_FIRST, "1332444442"},    {9, TOK_ONLY_FIRST, "132444442"},       {9, TOK_ONLY_SECOND, "133324442"},
        {8, TOK_ONLY_FIRST, NULL},             {6, TOK_ONLY_SECOND, NULL},             {3, TOK_LONGEST_FIRST, "122"},
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        struct tok_input in = {.text = "a a a", .len = 5, .pair = "b b b b b", .pair_len = 9, .max_tokens = list[i].max, .cut = list[i].cut, .spans = 1};
        struct tok_result r;
        struct err e = {0};
        enum status rc = tokenizer_encode_input(tok, scratch, &in, &r, &e);
        assert_int_equal(rc, list[i].ids ? ST_OK : ST_USER);
        if (rc != ST_OK)
            continue;
        char got[32] = "";
        for (uint32_t k = 0; k < r.count; k++)
            got[k] = (char)('0' + r.ids[k]);
        assert_string_equal(got, list[i].ids);
        assert_int_equal(r.truncated, list[i].max && list[i].max < 11);
        for (uint32_t k = 0; k < r.count; k++) {
            int second = k > 0 && k >= (uint32_t)(strchr(got, '2') - got) + 1;
            assert_int_equal(r.types[k], second);
            if (r.ids[k] == 3 || r.ids[k] == 4) {
                uint32_t nth = k - r.part[second].start;
                assert_true(k >= r.part[second].start && k < r.part[second].end);
                assert_int_equal(r.spans[k].start, 2 * nth);
                assert_int_equal(r.spans[k].end, 2 * nth + 1);
            } else {
                assert_int_equal(r.spans[k].end, 0);
            }
        }
    }
    use("{\"type\":\"WordLevel\",\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"[\":1}}", NULL, NULL,
        "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{}},");
    struct tok_input in = {.text = "a", .len = 1, .pair = "b", .pair_len = 1};
    struct tok_result r;
    struct err e = {0};
    assert_int_equal(tokenizer_encode_input(tok, scratch, &in, &r, &e), ST_USER);
    assert_string_equal(e.text, "the tokenizer's post_processor takes no second text");
}

static void test_old_files(void **state)
{
    (void)state;
    static const char vocab[] = "{\"<s>\":0,\"<pad>\":1,\"</s>\":2,\"<unk>\":3,\"h\":4,\"i\":5,\"hi\":6,\"\\u0120\":7,\"\\u0120hi\":8,\"<mask>\":9}";
    static const char merges[] = "#version: 0.2\nh i\r\n\xc4\xa0 hi\n";
    static const char roberta[] = "{\"tokenizer_class\":\"RobertaTokenizer\"}", gpt2[] = "{\"tokenizer_class\":\"GPT2Tokenizer\"}",
                      other[] = "{\"tokenizer_class\":\"CodeGenTokenizer\"}";
    drop_files();
    put_file("vocab.json", vocab, sizeof vocab - 1);
    put_file("merges.txt", merges, sizeof merges - 1);
    put_file("tokenizer_config.json", roberta, sizeof roberta - 1);
    reopen();
    gives("hi hi <mask>", "<s>|hi|\u0120hi|<mask>|</s>");
    assert_int_equal(tokenizer_pair_special_count(tok), 4);
    assert_true(tokenizer_is_special(tok, 9) && !tokenizer_is_special(tok, 6));
    put_file("tokenizer_config.json", gpt2, sizeof gpt2 - 1);
    reopen();
    gives("hi hi", "hi|\u0120hi");
    struct tokenizer *t = NULL;
    struct err e = {0};
    put_file("tokenizer_config.json", other, sizeof other - 1);
    assert_int_equal(tokenizer_open(dir, &t, &e), ST_USER);
    assert_non_null(strstr(e.text, "/tokenizer_config.json': tokenizer_class 'CodeGenTokenizer' is not supported by this version"));
    put_file("tokenizer_config.json", "{}", 2);
    assert_int_equal(tokenizer_open(dir, &t, &e), ST_USER);
    assert_non_null(strstr(e.text, "lacks a 'tokenizer_class', which says how vocab.json and merges.txt are meant"));
    put_file("tokenizer_config.json", gpt2, sizeof gpt2 - 1);
    put_file("merges.txt", "h i x\n", 6);
    assert_int_equal(tokenizer_open(dir, &t, &e), ST_USER);
    assert_non_null(strstr(e.text, "/vocab.json': merge 1 is not two tokens with a space between them"));
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double time_of(const char *text, size_t len)
{
    struct tok_result r;
    struct err e;
    double start = seconds();
    assert_int_equal(tokenizer_encode(tok, scratch, text, len, 0, &r, &e), ST_OK);
    return seconds() - start;
}

/* Eight times the word takes about eight times as long, not sixty-four. */
static void test_long_word(void **state)
{
    (void)state;
    size_t len = 120000;
    char *text = malloc(8 * len);
    assert_non_null(text);
    for (size_t i = 0; i < 8 * len; i++)
        text[i] = "abc"[(i * 7 + i / 5) % 3];
    use(BPE("", ABC, "\"a b\",\"b c\",\"ab c\""), NULL, NULL, NULL);
    for (int model = 0; model < 2; model++) {
        if (model)
            use(UNI("0", "[\"<unk>\",0],[\"a\",0],[\"b\",0],[\"c\",0],[\"ab\",2],[\"abc\",5]"), NULL, NULL, NULL);
        double one = time_of(text, len), eight = 1e9;
        for (int i = 0; i < 3; i++) {
            double t = time_of(text, len);
            one = t < one ? t : one;
        }
        for (int i = 0; i < 3; i++) {
            double t = time_of(text, 8 * len);
            eight = t < eight ? t : eight;
        }
        assert_true(eight < 30 * one);
    }
    free(text);
}

/* A regular expression that would take for ever is an error of the text, not of the tokenizer. */
static void test_match_limit(void **state)
{
    (void)state;
    struct tok_result r;
    struct err e = {0};
    char text[200];
    memset(text, 'a', sizeof text);
    use("{\"type\":\"WordLevel\",\"unk_token\":\"?\",\"vocab\":{\"?\":0}}", NULL, REGEX("(a+a+)+[bc]", "Isolated", "false"), NULL);
    assert_int_equal(tokenizer_encode(tok, scratch, text, sizeof text, 0, &r, &e), ST_USER);
    assert_non_null(strstr(e.text, "cannot be matched against this text"));
    assert_int_equal(tokenizer_encode(tok, scratch, "aab", 3, 0, &r, &e), ST_OK);
    use("{\"type\":\"WordLevel\",\"unk_token\":\"?\",\"vocab\":{\"?\":0}}",
        "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(a+a+)+[bc]\"},\"content\":\"x\"}", NULL, NULL);
    assert_int_equal(tokenizer_encode(tok, scratch, text, sizeof text, 0, &r, &e), ST_USER);
}

/* Bytes that are no UTF-8 are taken as U+FFFD by every model. */
static void test_bad_text(void **state)
{
    (void)state;
    static const char bad[] = "a\xff\xc3 \xe2\x82 b\xf0\x9f\x98";
    static const char good[] = "a\ufffd\ufffd \ufffd\ufffd b\ufffd\ufffd\ufffd";
    use(BPE("\"unk_token\":\"?\",", ABC ",\"\\ufffd\":7,\" \":8", "\"a b\""), NULL, REGEX("\\\\s+", "Isolated", "false"), NULL);
    struct tok_result r;
    struct err e;
    int32_t want[32];
    assert_int_equal(tokenizer_encode(tok, scratch, good, sizeof good - 1, 0, &r, &e), ST_OK);
    uint32_t count = r.count;
    memcpy(want, r.ids, count * sizeof *want);
    assert_int_equal(tokenizer_encode(tok, scratch, bad, sizeof bad - 1, 0, &r, &e), ST_OK);
    assert_int_equal(r.count, count);
    assert_memory_equal(r.ids, want, count * sizeof *want);
}

/* Every allocation fails once, for every model and component. */
static void test_no_memory(void **state)
{
    (void)state;
    static const char *const models[] = {
        BPE("\"unk_token\":\"?\",\"ignore_merges\":true,", ABC, "\"a b\""),
        UNI("0", "[\"<unk>\",0],[\"a\",0],[\"b\",0.5],[\"ab\",2]"),
        "{\"type\":\"WordLevel\",\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"a\":1}}",
    };
    static const char norm[] = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"},{\"type\":\"Prepend\",\"prepend\":\"a\"},"
                               "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"b+\"},\"content\":\"b\"}]}";
    static const char split[] = "{\"type\":\"Sequence\",\"pretokenizers\":[" REGEX("a|x", "Isolated", "false") "," META("always", "true")
                                ",{\"type\":\"ByteLevel\",\"add_prefix_space\":true}]}";
    static const char text[] = "a\u00e9 bbb abcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabc\u0301";
    for (size_t m = 0; m < 3; m++) {
        char *all = whole(models[m], norm, split, NULL);
        drop_files();
        put_file("tokenizer.json", all, strlen(all));
        mem_free(all);
        int failed = 0, done = 0;
        for (uint64_t n = 1; !done && n < 20000; n++) {
            struct tokenizer *t = NULL;
            struct tok_scratch *s = NULL;
            struct err e = {0};
            struct tok_result r;
            mem_fail_nth(n);
            enum status rc = tokenizer_open(dir, &t, &e);
            if (rc == ST_OK)
                rc = tok_scratch_new(&s, &e);
            for (int spans = 0; rc == ST_OK && spans < 2; spans++) {
                struct tok_input in = {.text = text, .len = sizeof text - 1, .pair = text, .pair_len = 9, .spans = spans};
                rc = tokenizer_encode_input(t, s, &in, &r, &e);
            }
            mem_fail_nth(0);
            if (rc == ST_OK) {
                done = 1;
            } else {
                assert_int_equal(rc, ST_NOMEM);
                assert_int_equal(e.code, ST_NOMEM);
                failed++;
            }
            tok_scratch_free(s);
            tokenizer_free(t);
        }
        assert_true(done);
        assert_true(failed > 20);
    }
}

static int setup(void **state)
{
    (void)state;
    struct err e;
    return mkdtemp(dir) && tok_scratch_new(&scratch, &e) == ST_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    drop_files();
    rmdir(dir);
    tokenizer_free(tok);
    tok_scratch_free(scratch);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_splits),    cmocka_unit_test(test_metaspace), cmocka_unit_test(test_normalizers),
        cmocka_unit_test(test_bpe),       cmocka_unit_test(test_alphabet),  cmocka_unit_test(test_unigram),
        cmocka_unit_test(test_pairs),     cmocka_unit_test(test_old_files), cmocka_unit_test(test_long_word),
        cmocka_unit_test(test_match_limit), cmocka_unit_test(test_bad_text), cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
