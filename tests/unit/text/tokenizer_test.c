/* Does a tokenizer do what its file says, refuse what it cannot do, stop at the limit, and survive hostile files and texts?
   (tests/unit/text/golden_test.c compares with Hugging Face's.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "tests/lib/files.h"
#include "workers/text/tokenizer.h"

static char dir[] = "/tmp/ebb-tokenizer-XXXXXX";
static struct tok_scratch *scratch;

static void put_file(const char *name, const char *data, size_t len)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    files_put(path, data, len);
}

static void drop_files(void)
{
    static const char *const names[] = {"tokenizer.json", "vocab.txt", "tokenizer_config.json"};
    for (size_t i = 0; i < 3; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
}

/* A whole tokenizer.json, each part replaceable. */
struct parts {
    const char *vocab, *model, *norm, *split, *added, *post;
};

#define VOCAB                                                                                                                    \
    "\"[PAD]\":0,\"[UNK]\":1,\"[CLS]\":2,\"[SEP]\":3,\"a\":4,\"b\":5,\"ba\":6,\"##na\":7,\"##n\":8,\"##a\":9,\"hello\":10,"      \
    "\"world\":11,\",\":12,\"!\":13,\"new\":14,\"york\":15,\"cafe\":16,\"caf\\u00e9\":17,\"i\":18,\"##\\u0307\":19,"           \
    "\"\\u65e5\":20,\"\\u672c\":21,\"##!\":22,\"a!\":23,\"##b\":24,\"##ba\":25,\"!!\":26,\"A\":27"
#define BERT "{\"type\":\"BertNormalizer\",\"clean_text\":true,\"handle_chinese_chars\":true,\"strip_accents\":null,\"lowercase\":true}"
#define TEMPLATE                                                                                                                 \
    "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"[CLS]\",\"type_id\":0}},{\"Sequence\":{\"id\":"    \
    "\"A\",\"type_id\":0}},{\"SpecialToken\":{\"id\":\"[SEP]\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"[CLS]\":"      \
    "{\"id\":\"[CLS]\",\"ids\":[2],\"tokens\":[\"[CLS]\"]},\"[SEP]\":{\"id\":\"[SEP]\",\"ids\":[3],\"tokens\":[\"[SEP]\"]}}}"
#define FLAGS(single, lstrip, rstrip, normalized, special)                                                                       \
    "\"single_word\":" #single ",\"lstrip\":" #lstrip ",\"rstrip\":" #rstrip ",\"normalized\":" #normalized ",\"special\":" #special
#define SEP "{\"id\":3,\"content\":\"[SEP]\"," FLAGS(false, false, false, false, true) "}"

static void put_json(struct parts p)
{
    char model[4096], all[16384];
    snprintf(model, sizeof model,
             "{\"type\":\"WordPiece\",\"unk_token\":\"[UNK]\",\"continuing_subword_prefix\":\"##\","
             "\"max_input_chars_per_word\":10,\"vocab\":{%s}}",
             p.vocab ? p.vocab : VOCAB);
    int n = snprintf(all, sizeof all,
                     "{\"version\":\"1.0\",\"truncation\":{\"max_length\":4},\"padding\":null,\"added_tokens\":[%s],"
                     "\"normalizer\":%s,\"pre_tokenizer\":%s,\"post_processor\":%s,\"decoder\":null,\"model\":%s}",
                     p.added ? p.added : SEP, p.norm ? p.norm : BERT, p.split ? p.split : "{\"type\":\"BertPreTokenizer\"}",
                     p.post ? p.post : TEMPLATE, p.model ? p.model : model);
    assert_true(n > 0 && n < (int)sizeof all);
    drop_files();
    put_file("tokenizer.json", all, (size_t)n);
}

static struct tokenizer *open_dir(void)
{
    struct tokenizer *t = NULL;
    struct err e = {0};
    if (tokenizer_open(dir, &t, &e) != ST_OK)
        fail_msg("%s", e.text);
    return t;
}

static struct tokenizer *open_with(struct parts p)
{
    put_json(p);
    return open_dir();
}

/* ids is what comes out, as text: "2 10 3". */
static void gives_n(const struct tokenizer *t, const char *text, size_t len, uint32_t max, int truncated, const char *ids)
{
    struct tok_result r;
    struct err e;
    assert_int_equal(tokenizer_encode(t, scratch, text, len, max, &r, &e), ST_OK);
    char got[4096] = "";
    int n = 0;
    for (uint32_t i = 0; i < r.count && n < 4000; i++)
        n += snprintf(got + n, sizeof got - (size_t)n, i ? " %d" : "%d", (int)r.ids[i]);
    assert_string_equal(got, ids);
    assert_int_equal(r.truncated, truncated);
}

static void gives(const struct tokenizer *t, const char *text, const char *ids)
{
    gives_n(t, text, strlen(text), 0, 0, ids);
}

static void refuses_files(enum status code, const char *words)
{
    struct tokenizer *t = NULL;
    struct err e = {0};
    assert_int_equal(tokenizer_open(dir, &t, &e), code);
    assert_null(t);
    assert_int_equal(e.code, code);
    const char *rest = strstr(e.text, dir);
    if (!rest || strcmp(rest + strlen(dir), words) != 0)
        fail_msg("got:  %s\nwant: %s", e.text, words);
}

static void refuses(struct parts p, const char *words)
{
    put_json(p);
    char want[512];
    snprintf(want, sizeof want, "/tokenizer.json': %s", words);
    refuses_files(ST_USER, want);
}

static void test_words(void **state)
{
    (void)state;
    struct tokenizer *t = open_with((struct parts){0});
    assert_int_equal(tokenizer_vocab_size(t), 28);
    assert_int_equal(tokenizer_special_count(t), 2);
    gives(t, "", "2 3");
    gives(t, "  \t\n", "2 3");
    gives(t, "hello", "2 10 3");
    gives(t, "Hello, WORLD!", "2 10 12 11 13 3");
    gives(t, "banana", "2 6 7 7 3");         /* the longest first */
    gives(t, "bananan", "2 6 7 7 8 3");
    gives(t, "bananax banana", "2 1 6 7 7 3"); /* unknown as a whole */
    gives(t, "nana", "2 1 3");
    gives(t, "ababababab", "2 4 25 25 25 25 24 3"); /* ten characters fit */
    gives(t, "abababababa", "2 1 3");
    gives(t, "a!!!b", "2 4 13 13 13 5 3"); /* punctuation stands alone */
    gives(t, "CAF\u00c9 cafe\u0301", "2 16 16 3");
    gives(t, "\u0130", "2 18 3");
    gives(t, "a\u65e5\u672cb", "2 4 20 21 5 3");
    gives(t, "he\u200bl\u00adlo wor\xef\xbf\xbdld", "2 10 11 3");
    gives_n(t, "hel\0lo\0 \0", 9, 0, 0, "2 10 3");
    gives(t, "a\u00a0b\u3000a", "2 4 5 4 3");
    tokenizer_free(t);
}

static void test_normalizers(void **state)
{
    (void)state;
    struct tokenizer *t = open_with((struct parts){.norm = "null"});
    gives(t, "caf\u00e9 cafe\u0301 A a", "2 17 1 27 4 3");
    tokenizer_free(t);
    t = open_with((struct parts){.norm = "{\"type\":\"NFC\"}"});
    gives(t, "caf\u00e9 cafe\u0301 A", "2 17 17 27 3");
    tokenizer_free(t);
    t = open_with((struct parts){.norm = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"},{\"type\":\"Lowercase\"}]}"});
    gives(t, "\uff28\uff25\uff2c\uff2c\uff2f CAFE\u0301 \u0130", "2 10 17 18 19 3");
    tokenizer_free(t);
    t = open_with((struct parts){.norm = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFD\"},{\"type\":\"StripAccents\"}]}"});
    gives(t, "caf\u00e9 A", "2 16 27 3");
    tokenizer_free(t);
    t = open_with((struct parts){.norm = "{\"type\":\"BertNormalizer\",\"clean_text\":false,\"handle_chinese_chars\":false,"
                                         "\"strip_accents\":false,\"lowercase\":true}"});
    gives(t, "CAF\u00c9 hel\u00adlo \u65e5\u672c", "2 17 1 1 3");
    tokenizer_free(t);
}

static void test_splits(void **state)
{
    (void)state;
    struct tokenizer *t = open_with((struct parts){.split = "{\"type\":\"WhitespaceSplit\"}"});
    gives(t, "a! a!b hello", "2 23 23 24 10 3");
    tokenizer_free(t);
    t = open_with((struct parts){.split = "{\"type\":\"Whitespace\"}"});
    gives(t, "a!! hello,world", "2 4 26 10 12 11 3");
    tokenizer_free(t);
}

static void test_post(void **state)
{
    (void)state;
    struct tokenizer *t =
        open_with((struct parts){.post = "{\"type\":\"BertProcessing\",\"sep\":[\"[SEP]\",3],\"cls\":[\"[CLS]\",2]}"});
    gives(t, "a", "2 4 3");
    tokenizer_free(t);
    t = open_with((struct parts){.post = "null"});
    assert_int_equal(tokenizer_special_count(t), 0);
    gives(t, "a", "4");
    gives(t, "", "");
    gives_n(t, "a a a", 5, 2, 1, "4 4");
    tokenizer_free(t);
    t = open_with((struct parts){
        .post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"SpecialToken\":{\"id\":"
                "\"end\",\"type_id\":0}}],\"special_tokens\":{\"end\":{\"id\":\"end\",\"ids\":[3,2],\"tokens\":[\"x\",\"y\"]}}}"});
    assert_int_equal(tokenizer_special_count(t), 2);
    gives_n(t, "a a a", 5, 4, 1, "4 4 3 2");
    tokenizer_free(t);
}

static void test_limit(void **state)
{
    (void)state;
    struct tokenizer *t = open_with((struct parts){0});
    const char *text = "hello banana a";
    gives_n(t, text, strlen(text), 0, 0, "2 10 6 7 7 4 3");
    gives_n(t, text, strlen(text), 100, 0, "2 10 6 7 7 4 3");
    gives_n(t, text, strlen(text), 7, 0, "2 10 6 7 7 4 3");
    gives_n(t, text, strlen(text), 6, 1, "2 10 6 7 7 3");
    gives_n(t, text, strlen(text), 5, 1, "2 10 6 7 3"); /* in the middle of a word */
    gives_n(t, text, strlen(text), 3, 1, "2 10 3");
    gives_n(t, text, strlen(text), 2, 1, "2 3");
    gives_n(t, text, strlen(text), 1, 1, "2");
    gives_n(t, "", 0, 2, 0, "2 3");
    gives_n(t, "a [SEP]  ", 9, 4, 0, "2 4 3 3");
    gives_n(t, "a [SEP] b", 9, 4, 1, "2 4 3 3");
    gives_n(t, "a [SEP]", 7, 3, 1, "2 4 3");
    tokenizer_free(t);
}

/* What lies far behind the limit is not even looked at: it cannot be read here. */
static void test_stops_early(void **state)
{
    (void)state;
    struct tokenizer *t = open_with((struct parts){0});
    size_t all = (size_t)1 << 30, open = 64 << 10;
    char *text = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_ptr_not_equal(text, MAP_FAILED);
    assert_int_equal(mprotect(text, open, PROT_READ | PROT_WRITE), 0);
    for (size_t i = 0; i < open; i++)
        text[i] = "a "[i % 2];
    gives_n(t, text, all, 8, 1, "2 4 4 4 4 4 4 3");
    for (size_t i = 0; i + 3 <= open; i += 3)
        memcpy(text + i, "\u65e5", 3);
    gives_n(t, text, all, 8, 1, "2 20 20 20 20 20 20 3");
    munmap(text, all);
    tokenizer_free(t);
}

static void test_added(void **state)
{
    (void)state;
    struct tokenizer *t = open_with((struct parts){
        .added = SEP ",{\"id\":28,\"content\":\"new york\"," FLAGS(false, false, false, true, false) "},{\"id\":29,\"content\":"
                     "\"Caf\\u00e9s\"," FLAGS(true, false, false, true, false) "},{\"id\":30,\"content\":\"<x>\","
                     FLAGS(false, true, true, false, false) "},{\"id\":31,\"content\":\"<x>>\"," FLAGS(false, false, false, false, false) "}"});
    assert_int_equal(tokenizer_vocab_size(t), 32);
    gives(t, "a[SEP]b", "2 4 3 5 3");
    gives(t, "a[sep]b [SEP", "2 4 1 1 1 5 1 1 3"); /* not normalised: only as it stands */
    gives(t, "A New  York", "2 4 14 15 3");
    gives(t, "aNEW YORKb", "2 4 28 5 3"); /* normalised on both sides, inside of words too */
    gives(t, "new yor", "2 14 1 3");
    gives(t, "cafes CAFE\u0301S xcafes cafesx!", "2 29 29 1 1 13 3"); /* single words only */
    gives(t, "cafes,cafes", "2 29 12 29 3");
    gives(t, "a  <x>  b", "2 4 30 5 3");
    gives(t, "a<x>>b<x>b", "2 4 31 5 30 5 3"); /* the longest */
    gives(t, "new york<x>new york", "2 28 30 28 3");
    char big[20000]; /* across every cut */
    for (size_t pad = 8180; pad < 8200; pad++) {
        memset(big, ' ', sizeof big);
        memcpy(big + pad, "new york[SEP]caf\u00e9s", 20);
        gives_n(t, big, sizeof big, 0, 0, "2 28 3 29 3");
    }
    tokenizer_free(t);
}

static void test_long(void **state)
{
    (void)state;
    struct tokenizer *t = open_with((struct parts){0});
    size_t len = 4 << 20;
    char *text = malloc(len);
    assert_non_null(text);
    memset(text, 'a', len); /* one word of 4 MB */
    gives_n(t, text, len, 0, 0, "2 1 3");
    memset(text, '[', len);
    gives_n(t, text, len, 4, 1, "2 1 1 3");
    memset(text, 0, len);
    gives_n(t, text, len, 0, 0, "2 3");
    for (size_t i = 0; i + 4 <= len; i += 4) /* marks that want another order, with nothing to cut at */
        memcpy(text + i, "\u0301\u0323", 4);
    text[0] = 'b';
    text[1] = 'a';
    gives_n(t, text, len, 0, 0, "2 6 3");
    memset(text, 'a', len);
    for (size_t i = 1; i < len; i += 2)
        text[i] = ' ';
    struct tok_result r;
    struct err e;
    assert_int_equal(tokenizer_encode(t, scratch, text, len, 0, &r, &e), ST_OK);
    assert_int_equal(r.count, len / 2 + 2);
    free(text);
    tokenizer_free(t);
}

static void test_vocab_txt(void **state)
{
    (void)state;
    static const char words[] = "[PAD]\n[UNK]\r\n[CLS]\n[SEP]\nhello\nHello\n##s\ncafe\ncaf\u00e9\n\u65e5\u672c\n\u65e5\n";
    drop_files();
    put_file("vocab.txt", words, sizeof words - 1);
    struct tokenizer *t = open_dir();
    assert_int_equal(tokenizer_vocab_size(t), 11);
    gives(t, "Hellos CAF\u00c9 [SEP]\u65e5 x", "2 4 6 7 3 10 1 3");
    tokenizer_free(t);

    static const char cased[] = "{\"do_lower_case\":false,\"strip_accents\":null,\"tokenize_chinese_chars\":false,"
                                "\"tokenizer_class\":\"BertTokenizer\",\"sep_token\":{\"content\":\"[SEP]\"}}";
    put_file("tokenizer_config.json", cased, sizeof cased - 1);
    t = open_dir();
    gives(t, "Hellos caf\u00e9 \u65e5\u672c", "2 5 6 8 9 3");
    tokenizer_free(t);

    static const char other[] = "{\"tokenizer_class\":\"T5Tokenizer\"}";
    put_file("tokenizer_config.json", other, sizeof other - 1);
    refuses_files(ST_USER, "/tokenizer_config.json': tokenizer_class 'T5Tokenizer' is not supported by this version");
    static const char sep[] = "{\"sep_token\":\"</s>\"}";
    put_file("tokenizer_config.json", sep, sizeof sep - 1);
    refuses_files(ST_USER, "/vocab.txt': the sep_token '</s>' is not in the vocabulary");
    drop_files();
    put_file("vocab.txt", "a\xff\n", 3);
    refuses_files(ST_USER, "/vocab.txt' is not UTF-8");
    put_file("vocab.txt", "a\nb\n", 4);
    refuses_files(ST_USER, "/vocab.txt': the unknown token '[UNK]' is not in the vocabulary");
    put_file("vocab.txt", "", 0);
    refuses_files(ST_USER, "/vocab.txt': the unknown token '[UNK]' is not in the vocabulary");
    drop_files();
    refuses_files(ST_NOT_FOUND, "' has no tokenizer: neither tokenizer.json nor vocab.txt nor vocab.json with merges.txt is there");
}

static void test_refusals(void **state)
{
    (void)state;
#define WP(rest) "{\"type\":\"WordPiece\"," rest "}"
    static const struct {
        struct parts parts;
        const char *words;
    } cases[] = {
        {{.model = "{\"type\":\"Other\",\"vocab\":[]}"}, "model type 'Other' is not supported by this version"},
        {{.model = "{\"type\":\"Unigram\",\"vocab\":[]}"}, "the model lacks a list 'vocab' with tokens and their scores"},
        {{.model = "{\"type\":\"Unigram\",\"vocab\":[[\"a\",0],[1,2]]}"}, "entry 1 of the vocabulary is not a token with a score"},
        {{.model = "{\"type\":\"Unigram\",\"unk_id\":1,\"vocab\":[[\"a\",0]]}"}, "'unk_id' is not an id of the vocabulary"},
        {{.model = "{\"type\":\"BPE\",\"vocab\":{}}"}, "the model lacks a list 'merges'"},
        {{.model = "{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}"}, "the model lacks a 'vocab' with tokens and their ids"},
        {{.model = "{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[\"a b\"]}"},
         "merge 1 needs tokens that the vocabulary lacks: 'a' and 'b'"},
        {{.model = "{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b c\"]}"},
         "merge 1 is not two tokens with a space between them"},
        {{.model = "{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[[\"a\",\"b\"],[\"a\"]]}"},
         "merge 2 is not two tokens"},
        {{.model = "{\"type\":\"BPE\",\"dropout\":0.1,\"vocab\":{\"a\":0},\"merges\":[]}"},
         "the model has a dropout: its tokens would be drawn by lot; set it to null"},
        {{.model = "{\"type\":\"WordLevel\",\"vocab\":{\"a\":0}}"}, "the model lacks a string 'unk_token'"},
        {{.model = "{}"}, "model type lacks a 'type'"},
        {{.model = "null"}, "the file lacks a 'model'"},
        {{.model = WP("\"vocab\":{\"a\":0}")}, "the model lacks a string 'unk_token'"},
        {{.model = WP("\"unk_token\":\"a\",\"vocab\":{\"a\":0}")}, "the model lacks a string 'continuing_subword_prefix'"},
        {{.model = WP("\"unk_token\":\"a\",\"continuing_subword_prefix\":\"\",\"vocab\":{\"a\":0}")},
         "the model lacks a number 'max_input_chars_per_word'"},
        {{.model = WP("\"unk_token\":\"a\",\"continuing_subword_prefix\":\"\",\"max_input_chars_per_word\":-1,\"vocab\":{\"a\":0}")},
         "max_input_chars_per_word is -1, but must be 1 to 65536"},
        {{.model = WP("\"unk_token\":\"a\",\"continuing_subword_prefix\":\"\",\"max_input_chars_per_word\":9,\"vocab\":[]")},
         "the model lacks a 'vocab' with tokens and their ids"},
        {{.vocab = "\"a\":0"}, "the unknown token '[UNK]' is not in the vocabulary"},
        {{.vocab = "\"[UNK]\":0,\"a\":1,\"b\":1"}, "the vocabulary gives id 1 twice, the second time to 'b'"},
        {{.vocab = "\"[UNK]\":0,\"a\":16777217"}, "the id of 'a' is not a number from 0 to 16777216"},
        {{.vocab = "\"[UNK]\":0,\"a\":-1"}, "the id of 'a' is not a number from 0 to 16777216"},
        {{.vocab = "\"[UNK]\":0,\"a\":\"1\""}, "the id of 'a' is not a number from 0 to 16777216"},
        {{.norm = "{\"type\":\"Other\"}"}, "normalizer 'Other' is not supported by this version"},
        {{.norm = "{\"type\":\"Precompiled\"}"}, "the normalizer 'Precompiled' lacks a string 'precompiled_charsmap'"},
        {{.norm = "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAA\"}"},
         "the 'precompiled_charsmap' of the normalizer is damaged"},
        {{.norm = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Replace\"}]}"},
         "the normalizer 'Replace' lacks a 'pattern' that is a String or a Regex"},
        {{.norm = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"}}"}, "the normalizer 'Replace' lacks the string to put in"},
        {{.norm = "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a(\"},\"content\":\"\"}"},
         "the normalizer 'Replace': the regular expression 'a(' cannot be compiled: missing closing parenthesis"},
        {{.norm = "{\"type\":\"Strip\"}"}, "'strip_left' of the normalizer 'Strip' is not true or false"},
        {{.norm = "[]"}, "normalizer lacks a 'type'"},
        {{.norm = "{\"type\":\"BertNormalizer\"}"}, "'clean_text' of the BertNormalizer is not true or false"},
        {{.split = "{\"type\":\"Other\"}"}, "pre_tokenizer 'Other' is not supported by this version"},
        {{.split = "{\"type\":\"ByteLevel\"}"}, "'add_prefix_space' of the pre_tokenizer 'ByteLevel' is not true or false"},
        {{.split = "{\"type\":\"Metaspace\",\"replacement\":\"ab\"}"},
         "the pre_tokenizer 'Metaspace' lacks the one character it is about"},
        {{.split = "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"add_prefix_space\":false}"},
         "'add_prefix_space' of the pre_tokenizer 'Metaspace' does not go with its 'prepend_scheme'"},
        {{.split = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&b]\"},\"behavior\":\"Isolated\",\"invert\":false}"},
         "the pre_tokenizer 'Split': the regular expression '[a&&b]' is not supported by this version: brackets inside of brackets, or &&"},
        {{.split = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Other\",\"invert\":false}"},
         "behavior 'Other' is not supported by this version"},
        {{.post = "{\"type\":\"Other\"}"}, "post_processor 'Other' is not supported by this version"},
        {{.post = "{\"type\":\"RobertaProcessing\"}"}, "'trim_offsets' of the post_processor 'RobertaProcessing' is not true or false"},
        {{.post = "{\"type\":\"BertProcessing\",\"sep\":[\"x\",99],\"cls\":[\"x\",2]}"},
         "the post_processor uses id 99, which the vocabulary lacks"},
        {{.post = "{\"type\":\"TemplateProcessing\",\"single\":[]}"}, "the post_processor's template lacks the text (Sequence 'A')"},
        {{.post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}]}"},
         "the post_processor does not say which ids 'x' has"},
        {{.post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"B\"}}]}"},
         "piece 0 of the post_processor's template is not supported"},
        {{.added = "{\"id\":7,\"content\":\"[SEP]\"," FLAGS(false, false, false, false, true) "}"},
         "the added token '[SEP]' has id 7, but would be numbered 3"},
        {{.added = "{\"id\":99,\"content\":\"zz\"," FLAGS(false, false, false, false, true) "}"},
         "the added token 'zz' has id 99, but would be numbered 28"},
        {{.added = SEP ",{\"id\":3,\"content\":\"[SEP]\"," FLAGS(true, false, false, false, true) "}"},
         "the added token '[SEP]' is there twice, each time different"},
        {{.added = "{\"id\":28,\"content\":\"\\u0301\"," FLAGS(false, false, false, true, true) "}"},
         "nothing is left of the added token '\u0301' once it is normalised"},
        {{.added = "7"}, "added token 0 lacks 'content' or 'id'"},
        {{.added = "{\"id\":3,\"content\":\"[SEP]\"}"}, "'single_word' of an added token is not true or false"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        refuses(cases[i].parts, cases[i].words);

    drop_files();
    put_file("tokenizer.json", "{\n  \"a\": }", 10);
    refuses_files(ST_USER, "/tokenizer.json': line 2, column 8: unexpected token near '}'");
    put_file("tokenizer.json", "[]", 2);
    refuses_files(ST_USER, "/tokenizer.json' is not a JSON object");
    put_file("tokenizer.json", "", 0);
    refuses_files(ST_USER, "/tokenizer.json': line 1, column 0: '[' or '{' expected near end of file");
    put_json((struct parts){.vocab = "\"[UNK]\":0,\"a\":1,\"a\":2"});
    struct tokenizer *t = NULL;
    struct err e;
    assert_int_equal(tokenizer_open(dir, &t, &e), ST_USER);
    assert_non_null(strstr(e.text, "duplicate object key"));
    char *deep = malloc(100000);
    memset(deep, '[', 100000);
    put_file("tokenizer.json", deep, 100000);
    free(deep);
    assert_int_equal(tokenizer_open(dir, &t, &e), ST_USER);
    assert_null(t);
}

/* Every allocation fails once: an error each time, nothing lost, and then all goes well. */
static void test_no_memory(void **state)
{
    (void)state;
    static const char added[] = SEP ",{\"id\":28,\"content\":\"new york\"," FLAGS(false, false, false, true, false) "}";
    static const char *const texts[] = {"Hello, b\u00e4nana [SEP] x\u0301\u0302\u0303\u0304\u0305\u0301\u0302\u0303\u0304\u0305\u0301\u0302"
                                        "\u0303\u0304\u0305\u0301\u0302\u0303\u0304\u0305\u65e5\u672c new york new",
                                        "plain text"};
    for (int kind = 0; kind < 3; kind++) {
        if (kind < 2) {
            put_json((struct parts){.added = kind ? added : NULL});
        } else {
            drop_files();
            put_file("vocab.txt", "[UNK]\n[CLS]\n[SEP]\na", 19);
        }
        int failed = 0, done = 0;
        for (uint64_t n = 1; !done && n < 10000; n++) {
            struct tokenizer *t = NULL;
            struct tok_scratch *s = NULL;
            struct err e = {0};
            mem_fail_nth(n);
            enum status rc = tokenizer_open(dir, &t, &e);
            if (rc == ST_OK)
                rc = tok_scratch_new(&s, &e);
            for (size_t i = 0; rc == ST_OK && i < 2; i++) {
                struct tok_result r;
                rc = tokenizer_encode(t, s, texts[i], strlen(texts[i]), 0, &r, &e);
            }
            mem_fail_nth(0);
            if (rc == ST_OK) {
                done = 1;
            } else {
                assert_int_equal(rc, ST_NOMEM);
                assert_int_equal(e.code, ST_NOMEM);
                failed++;
                struct tok_result r;
                if (s) /* the scratch is as good as before */
                    assert_int_equal(tokenizer_encode(t, s, "a", 1, 0, &r, &e), ST_OK);
            }
            tok_scratch_free(s);
            tokenizer_free(t);
        }
        assert_true(done);
        assert_true(failed > 10);
    }
}

/* Damaged files are refused or read, damaged texts are tokenised; neither crashes (the sanitizers watch). */
static void test_damage(void **state)
{
    (void)state;
    put_json((struct parts){.added = SEP ",{\"id\":28,\"content\":\"new york\"," FLAGS(false, true, true, true, false) "}"});
    char path[128], good[16384], bad[16384], text[512];
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t len = fread(good, 1, sizeof good, f);
    fclose(f);
    struct tokenizer *t = open_dir();
    uint64_t r = 88172645463325252u;
    int opened = 0, refused = 0;
    for (int round = 0; round < 1500; round++) {
        memcpy(bad, good, len);
        size_t n = len;
        for (int k = 0; k < 1 + round % 4; k++) {
            r ^= r << 13, r ^= r >> 7, r ^= r << 17;
            size_t at = r % len;
            if (r >> 60 < 12)
                bad[at] = "0123456789{}[]\",:nAa#-"[(r >> 20) % 22];
            else
                n = at + 1;
        }
        put_file("tokenizer.json", bad, n);
        struct tokenizer *other = NULL;
        struct err e = {0};
        struct tok_result out;
        if (tokenizer_open(dir, &other, &e) == ST_OK) {
            opened++;
            assert_int_equal(tokenizer_encode(other, scratch, "Hello, New York banana!", 23, 0, &out, &e), ST_OK);
            tokenizer_free(other);
        } else {
            refused++;
            assert_true(e.text[0] != 0);
        }
        for (size_t i = 0; i < sizeof text; i++) {
            r ^= r << 13, r ^= r >> 7, r ^= r << 17;
            text[i] = (char)(r >> 30);
        }
        size_t some = (size_t)round % sizeof text + 1;
        char *exact = malloc(some); /* so that a read past the end is seen */
        assert_non_null(exact);
        memcpy(exact, text + sizeof text - some, some);
        assert_int_equal(tokenizer_encode(t, scratch, exact, some, (uint32_t)(round % 7), &out, &e), ST_OK);
        free(exact);
    }
    assert_true(opened > 50 && refused > 50);
    tokenizer_free(t);
}

static void *encode_many(void *arg)
{
    const struct tokenizer *t = arg;
    struct tok_scratch *s = NULL;
    struct tok_result r;
    struct err e;
    uintptr_t wrong = tok_scratch_new(&s, &e) != ST_OK;
    for (int i = 0; i < 2000 && !wrong; i++)
        wrong = tokenizer_encode(t, s, "Hello, b\u00e1nana", 14, 0, &r, &e) != ST_OK || r.count != 7 || r.ids[3] != 6;
    tok_scratch_free(s);
    return (void *)wrong;
}

static void test_threads(void **state)
{
    (void)state;
    struct tokenizer *t = open_with((struct parts){0});
    pthread_t thread[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, encode_many, t), 0);
    for (int i = 0; i < 4; i++) {
        void *wrong;
        pthread_join(thread[i], &wrong);
        assert_null(wrong);
    }
    tokenizer_free(t);
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
    tok_scratch_free(scratch);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),     cmocka_unit_test(test_normalizers), cmocka_unit_test(test_splits),
        cmocka_unit_test(test_post),      cmocka_unit_test(test_limit),       cmocka_unit_test(test_stops_early),
        cmocka_unit_test(test_added),     cmocka_unit_test(test_long),        cmocka_unit_test(test_vocab_txt),
        cmocka_unit_test(test_refusals),  cmocka_unit_test(test_no_memory),   cmocka_unit_test(test_damage),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
