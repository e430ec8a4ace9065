#!/usr/bin/env python3
"""Writes tokens_bert.jsonl: texts and the ids that Hugging Face's tokenizers gives them with the tokenizer of all-MiniLM-L6-v2.

    python3 tests/golden/tokens.py MODEL-FOLDER [WORDNET-FOLDER] > tests/golden/tokens_bert.jsonl
    python3 tests/golden/tokens.py --tables > workers/text/unicode_tables.c

Needs the Python package `tokenizers`. The tables are what its normalisers and splitters do with every single character.
"""
import json
import random
import sys
import unicodedata

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

SEED = 20240229

WRITTEN = [
    "", " ", "\t\n\r ", "a", "A", ".", "Hello, world!", "hello", "HELLO WORLD", "unaffable", "The quick brown fox jumps over the lazy dog.",
    "don't can't won't it's I'm you're", "e-mail: someone@example.com, http://example.com/a?b=c&d=%20#e", "C:\\Users\\x\\y.txt",
    "$100.00 + 5% = ~105; 3 < 4 > 2 ^ 8 | 1 `x` {y} [z]", "a_b__c", "1,234,567.89", "1e-5 0x1F 3.14", "x" * 99, "x" * 100, "x" * 101,
    "ab" * 50, "ab" * 51, "word " * 50, "no" + "o" * 300 + " yes", "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    # Latin with accents, composed and not
    "Café déjà vu, naïve façade, Ångström, coöperate, Ærøskøbing, Łódź, Škoda, Žižek, Dvořák",
    "Cafe\u0301 de\u0301ja\u0300 vu nai\u0308ve fac\u0327ade A\u030angstro\u0308m", "ÀÁÂÃÄÅ ÈÉÊË ÌÍÎÏ ÒÓÔÕÖØ ÙÚÛÜ ÝŸ Ñ Ç ß ẞ", "İstanbul ISPARTA ısı İİ i̇",
    "Việt Nam: Tiếng Việt có dấu, Nguyễn Phú Trọng", "q\u0307\u0323 q\u0323\u0307 a\u0327\u0301\u0323b", "\u0301leading \u0301 alone x\u0301\u0302\u0303\u0304\u0305",
    "zażółć gęślą jaźń", "Flygande bäckasiner söka hwila på mjuka tuvor", "Příliš žluťoučký kůň úpěl ďábelské ódy", "ŒUVRE œuvre ĳssel Ǆ ǅ ǆ ﬁ ﬂ ﬀ ﬃ ﬄ ﬅ ﬆ",
    # Greek, Cyrillic
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. ΟΔΥΣΣΕΥΣ ΣΑΣ ς σ", "Ἀχιλλεύς ᾿Ωκεανός ᾼ ῼ ΐ ΰ", "Съешь же ещё этих мягких французских булок, да выпей чаю",
    "Жебракують філософи при ґанку церкви в Гадячі, ще й шатро їхнє п’яне знаємо.", "ЙОГУРТ й и\u0306 ё е\u0308 Ѹ ꙋ Ԁ",
    # Arabic, Hebrew, Indic, Thai
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر ومغلف بجلد أزرق", "مُحَمَّد، السَّلَامُ عَلَيْكُمْ؟ ٪٤٢ ﷺ ﷲ ﻻ", "דג סקרן שט בים מאוכזב ולפתע מצא לו חברה",
    "בְּרֵאשִׁית בָּרָא אֱלֹהִים ״אמר״ ׳א׳ ־", "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश। हिन्दी क़ ख़ ॥", "আমি বাংলায় গান গাই। ো ৌ য়", "தமிழ் மொழி கொ கோ கௌ",
    "ಕನ್ನಡ ೊ ೋ", "മലയാളം ൊ ോ ൌ ൽ", "සිංහල ෝ ෞ", "తెలుగు ై", "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กำ น้ำ ฯ ๆ", "ພາສາລາວ ຳ ໜ", "བོད་ཡིག གྷ ཱི", "မြန်မာဘာသာ ဦ", "ខ្មែរ ។",
    "ქართული ენა ᲥᲐᲠᲗᲣᲚᲘ", "Հայերեն և ՀԱՅԵՐԵՆ ՙ ՚", "አማርኛ ፡ ።", "ᏣᎳᎩ ꭰ Ꭰ", "ᓄᓇᕗᑦ ᙮ ᙭", "ᚠᚢᚦ ᛫ ᛬", "ᠮᠣᠩᠭᠣᠯ ᠎ ᠠ", "𐐀𐐁 𐐨𐐩 𞤀𞤁 𞤢",
    # CJK
    "我能吞下玻璃而不伤身体。", "我能吞下玻璃而不傷身體", "中文English混合123文本", "私はガラスを食べられます。それは私を傷つけません。ヵ゛か\u3099ガ ヶ", "ｱｲｳ ｶﾞ ﾊﾟ ｡｢｣､",
    "나는 유리를 먹을 수 있어요. 그래도 아프지 않아요", "한글 \u1112\u1161\u11ab\u1100\u1173\u11af ㅎㅏㄴ 가\u11a8 가\u302e", "𠀀𠀁 𪛖 𫝀 𫠠 𬺰 𰀀", "豈更車賈 丽丸乁 塚 \ufa10 \ufa0e", "ＦＵＬＬｗｉｄｔｈ　１２３！？＃", "々〆〇〡 ㈱㍿ ㋿ ①②③ ㊀",
    "人" * 200, "日本 語 " * 20,
    # Emoji, symbols, mathematics
    "😀😃 👨‍👩‍👧‍👦 👍🏽 🇩🇪🇫🇷 ❤️ ☺︎ 🏳️‍🌈 🤷🏾‍♀️ 1️⃣ #️⃣", "I ❤ NY ☕☕ ✓ ✔ ✗ → ⇒ ∀x∈ℝ: x²≥0 ∑∫√∞≠≤≥±×÷", "𝐀𝑩𝒞𝔇𝕰𝖥𝗚 𝟘𝟙𝟚 𝛼𝛽", "ℵ ℏ ℓ № ™ © ® ° µ Å Ω K ½ ¼ ⅓ ² ³ ¹",
    "“quotes” ‘single’ «guillemets» „low‟ ‹x› ‚y‛", "— – ‒ ― ‐ ‑ − … ‥ · • ‧ ‣", "€ £ ¥ ₹ ₿ ₽ ¢ ₩ ₪", "§ ¶ † ‡ ※ ¿ ¡ ª º ´ ¨ ¯ ¸", "┌─┐│█▓▒░ ♠♣♥♦ ♪♫",
    # Spaces, controls
    "no\u00a0break\u2007figure\u202fnarrow\u3000ideographic\u1680ogham\u2028line\u2029para\u205fmath\u0085nel", "zero\u200bwidth\u200cnon\u200djoiner\ufeffbom\u2060wj\u00adsoft",
    "a\u0000b\u0001c\u0008d\u000be\u000cf\u001bg\u007fh\u0080i\u009fj", "tab\tnew\nline\rcr\r\ncrlf", "\u0000", "\u0000\u0000 \u0000", "bad \ufffd char\ufffd\ufffd", "e\u0000\u0301 e\u200d\u0301 e \u0301",
    "\u202aleft\u202c \u202eright\u202c \u2066iso\u2069", "private \ue000\uf8ff \U000f0000 \U0010fffd use", "un\u0378assigned \u0380 \u2fff \U000e0080 \U0003ffff \uffff \ufffe", "tag \U000e0001\U000e0041",
    # Special tokens inside of text
    "[CLS]", "[SEP]", "[MASK]", "[PAD][UNK]", "The [MASK] sat on the mat.", "a[SEP]b", "[SEP][SEP] [CLS]x[CLS]", "[sep] [Sep] [ SEP ] [SEP [SEPP] SEP]", "[[SEP]]", "[unused1] [unused99] ##ing ## # ##",
    "[CL[CLS]S]", "x [MASK]\u0301 y", "é[MASK]é", "[MASK", "[UNK]known un[UNK]", "[SEP\u0000]", "\u0000[SEP]\u0000",
]

SCRIPTS = [
    (0x20, 0x7E), (0xA0, 0x17F), (0x180, 0x24F), (0x250, 0x2FF), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x530, 0x58F), (0x590, 0x5FF), (0x600, 0x6FF),
    (0x700, 0x7FF), (0x800, 0x8FF), (0x900, 0x97F), (0x980, 0xDFF), (0xE00, 0xEFF), (0xF00, 0xFFF), (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x139F),
    (0x13A0, 0x16FF), (0x1700, 0x18AF), (0x1900, 0x1AFF), (0x1B00, 0x1CFF), (0x1D00, 0x1DFF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x214F), (0x2150, 0x23FF),
    (0x2400, 0x27BF), (0x27C0, 0x2BFF), (0x2C00, 0x2DFF), (0x2E00, 0x2FFF), (0x3000, 0x30FF), (0x3100, 0x33FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xA000, 0xA4CF),
    (0xA4D0, 0xA7FF), (0xA800, 0xABFF), (0xAC00, 0xD7FF), (0xE000, 0xE0FF), (0xF900, 0xFAFF), (0xFB00, 0xFDFF), (0xFE00, 0xFEFF), (0xFF00, 0xFFFF), (0x10000, 0x103FF),
    (0x10400, 0x10FFF), (0x11000, 0x11FFF), (0x12000, 0x16FFF), (0x1B000, 0x1BFFF), (0x1D000, 0x1D7FF), (0x1E000, 0x1EFFF), (0x1F000, 0x1FAFF), (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF), (0x2F800, 0x2FA1F), (0x30000, 0x3134F), (0xE0000, 0xE01EF), (0xF0000, 0xF00FF), (0x10FF00, 0x10FFFF),
]


def soup(r, ranges, length):
    out = []
    while len(out) < length:
        lo, hi = r.choice(ranges)
        c = r.randint(lo, hi)
        if not 0xD800 <= c < 0xE000:
            out.append(chr(c))
    return "".join(out)


def texts(wordnet):
    r = random.Random(SEED)
    yield from WRITTEN
    glosses = []
    for part in ("noun", "verb", "adj", "adv"):
        try:
            with open(f"{wordnet}/data.{part}", encoding="utf-8") as f:
                glosses += [line.split(" | ", 1)[1].strip() for line in f if " | " in line]
        except FileNotFoundError:
            sys.exit(f"no WordNet at {wordnet}: give its folder as the second argument")
    for g in r.sample(glosses, 400):
        yield g
    for g in r.sample(glosses, 40):
        yield g.upper()
    for _ in range(20):
        yield " ".join(r.sample(glosses, 12))
    for script in SCRIPTS:  # words of one script, then a run without spaces
        yield " ".join(soup(r, [script], r.randint(1, 8)) for _ in range(10))
        yield soup(r, [script], r.randint(20, 60))
    marks = [(0x300, 0x36F), (0x483, 0x487), (0x591, 0x5BD), (0x610, 0x61A), (0x64B, 0x65F), (0x3099, 0x309A), (0x302A, 0x302F), (0x1DC0, 0x1DFF), (0x1D165, 0x1D169)]
    for _ in range(60):  # letters under piles of marks
        yield "".join(soup(r, [(0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x24F), (0x410, 0x44F), (0x3041, 0x3096)], 1) + soup(r, marks, r.randint(0, 6)) for _ in range(12))
    for _ in range(10):
        yield "a" + soup(r, marks, 60) + "b " + soup(r, [(0x1D165, 0x1D172), (0x302E, 0x302F), (0x94D, 0x94D)], 40)
    for _ in range(150):
        yield soup(r, SCRIPTS, r.randint(5, 50))
    every = [(0, 0xD7FF), (0xE000, 0x10FFFF)]
    for _ in range(60):
        yield soup(r, every, r.randint(5, 40))
    words = [w for t in WRITTEN for w in t.split(" ")]
    glue = ["", " ", "  ", "\n", "\t", ".", ",", "-", "\u200b", "\u00a0", "\u0000", "\u0301", "[SEP]", "[MASK]", "##"]
    for _ in range(150):
        yield "".join(r.choice(words) + r.choice(glue) for _ in range(r.randint(3, 15)))[:400]


def golden(model, wordnet):
    t = Tokenizer.from_file(model + "/tokenizer.json")
    t.no_padding()
    t.no_truncation()
    rows = list(texts(wordnet))
    for text in rows:
        print(json.dumps({"text": text, "ids": t.encode(text).ids}, separators=(",", ":")))
    r = random.Random(SEED + 1)
    for text in r.sample(rows, 300):
        for limit in r.sample([3, 4, 5, 7, 8, 12, 16, 31, 32, 64, 128], 2):
            t.enable_truncation(limit)
            print(json.dumps({"text": text, "max_tokens": limit, "ids": t.encode(text).ids}, separators=(",", ":")))


def table(name, words, chars):
    ranges = []
    for c in chars:
        if ranges and ranges[-1][1] == c - 1:
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    lines, line = [], "   "
    for first, last in ranges:
        item = f" {{0x{first:X}, 0x{last:X}}},"
        if len(line) + len(item) > 128:
            lines.append(line)
            line = "   "
        line += item
    lines.append(line)
    body = "\n".join(lines)
    print(f"\n/* {words} */\nconst struct uni_range {name}[] = {{\n{body}\n}};\nconst size_t {name}_count = sizeof {name} / sizeof {name}[0];")


def tables():
    off = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    clean = normalizers.BertNormalizer(**{**off, "clean_text": True})
    strip = normalizers.BertNormalizer(**{**off, "strip_accents": True})
    marks = normalizers.StripAccents()
    split = pre_tokenizers.BertPreTokenizer()
    every = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    print("""/* Character categories of the Unicode versions that the reference implementation (Hugging Face's tokenizers) was built with.
   They are frozen here because token ids hang on them: a newer character database would give a model other ids than it was
   trained on. Generated by tests/golden/tokens.py --tables. */
#include "workers/text/unicode.h\"""")
    table("uni_other", "Cc, Cf and Co of Unicode 8.0, without tab, line feed and carriage return: removed by clean_text",
          [c for c in every if c not in (0, 0xFFFD) and clean.normalize_str(f"a{chr(c)}b") == "ab"])
    table("uni_punct", "P of Unicode 8.0 outside ASCII", [c for c in every if c >= 0x80 and len(split.pre_tokenize_str(f"a{chr(c)}b")) == 3])
    table("uni_mn", "Mn of Unicode 8.0: removed by strip_accents", [c for c in every if strip.normalize_str(chr(c)) == ""])
    table("uni_mark", "M (Mn, Mc, Me) of Unicode 9.0: removed by StripAccents; only these have a combining class there",
          [c for c in every if marks.normalize_str(chr(c)) == ""])
    for name, what in (("letter", r"\p{L}"), ("number", r"\p{N}")):
        gone = pre_tokenizers.Split(Regex(what), "removed")
        table(f"uni_{name}", f"{what} of a regular expression", [c for c in every if not gone.pre_tokenize_str(chr(c))])
    digits = pre_tokenizers.Digits(True)
    table("uni_digit", "what Digits splits at", [c for c in every if len(digits.pre_tokenize_str("a" + chr(c))) == 2])
    scripts(every)
    late(every)


def late(every):
    """Characters that the reference's regular expressions know and those of Unicode 14 (of PCRE2 10.42) do not."""
    if unicodedata.unidata_version != "14.0.0":
        sys.exit("this table needs a Python whose unicodedata is that of Unicode 14 (3.11)")
    unknown, rows = [c for c in every if unicodedata.category(chr(c)) == "Cn"], []
    for kind in "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So".split():
        gone = pre_tokenizers.Split(Regex(r"\p{%s}" % kind), "removed")
        for c in unknown:
            if not gone.pre_tokenize_str(chr(c)):
                if rows and rows[-1][1] == c - 1 and rows[-1][2] == kind:
                    rows[-1][1] = c
                else:
                    rows.append([c, c, kind])
    lines, line = [], "   "
    for first, end, kind in rows:
        item = f' {{0x{first:X}, 0x{end:X}, "{kind}"}},'
        if len(line) + len(item) > 128:
            lines.append(line)
            line = "   "
        line += item
    lines.append(line)
    body = "\n".join(lines)
    print("\n/* Characters that came after Unicode 14, with their category */")
    print(f"const struct uni_late uni_lates[] = {{\n{body}\n}};")
    print("const size_t uni_lates_count = sizeof uni_lates / sizeof uni_lates[0];")


def scripts(every):
    """The classes of UnicodeScripts, told by whether a character stays together with one of a class; 0 goes with all."""
    split = pre_tokenizers.UnicodeScripts()
    together = lambda a, b: len(split.pre_tokenize_str(a + b)) == 1
    heads, rows, last = ["a", "\u0430"], [], None
    for c in every:
        ch = chr(c)
        if last is not None and last != 0 and together(heads[last - 1], ch) and not together(heads[last % 2], ch):
            k = last
        elif together(heads[0], ch) and together(heads[1], ch):
            k = 0
        else:
            k = next((i + 1 for i, h in enumerate(heads) if together(h, ch)), None)
            if k is None:
                heads.append(ch)
                k = len(heads)
        if rows and rows[-1][2] == k and rows[-1][1] in (c - 1, 0xD7FF):
            rows[-1][1] = c
        else:
            rows.append([c, c, k])
        last = k
    rows = [r for r in rows if r[2]]
    lines, line = [], "   "
    for first, end, k in rows:
        item = f" {{0x{first:X}, 0x{end:X}, {k}}},"
        if len(line) + len(item) > 128:
            lines.append(line)
            line = "   "
        line += item
    lines.append(line)
    body = "\n".join(lines)
    print("\n/* The scripts of UnicodeScripts, numbered as they come; what is in none goes with every one. */")
    print(f"const struct uni_script_range uni_scripts[] = {{\n{body}\n}};")
    print("const size_t uni_scripts_count = sizeof uni_scripts / sizeof uni_scripts[0];")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if sys.argv[1] == "--tables":
        tables()
    else:
        golden(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "/usr/share/wordnet")
