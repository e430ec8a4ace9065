#!/usr/bin/env python3
"""How minilm_embeddings.jsonl was made: sentence-transformers' own tokens and embeddings for varied texts.

    python3 tests/golden/embeddings.py MODEL_DIR > tests/golden/minilm_embeddings.jsonl

Needs sentence-transformers (6.2.0, with transformers 5.24.0, tokenizers 0.23.3 and torch 2.15.0 when the file was made). The
model is all-MiniLM-L6-v2. Each text is run alone, in f32, on the processor. One JSON object a line:
text; ids, the tokens after truncation, special ones included; embedding, 384 floats with 9 digits, which name an f32 exactly.
"""
import json
import sys

import torch
from sentence_transformers import SentenceTransformer

LOREM = ("The ledger of a dataset is an interval map over its coordinates; what is committed is never done again, and what was "
         "lost is read once more from the source. ")

TEXTS = [
    "",
    " ",
    "\n\t \r\n",
    "a",
    "word",
    "Hello",
    "hello",
    "HELLO WORLD",
    "The quick brown fox jumps over the lazy dog.",
    "Is this a question?  Or two?!",
    "e-mail: someone@example.org, https://example.org/path?x=1&y=%20#frag",
    "3.14159 2,718.28 -1e-9 0x7fff 100% 50€ £20 ¥300",
    "don't can't won't it's o'clock rock'n'roll",
    "snake_case camelCase kebab-case SCREAMING_SNAKE",
    "if (x < 3 && y >= 2) { return a[i] ^ ~b; } // comment",
    "a small domesticated feline; \"the cat sat on the mat\"",
    "an instrument for measuring the height of a column of mercury",
    "(botany) of or relating to the calyx",
    "antidisestablishmentarianism floccinaucinihilipilification pneumonoultramicroscopicsilicovolcanoconiosis",
    "x" * 99,
    "x" * 100,
    "x" * 101,
    "q" * 5000,
    "café naïve résumé coöperate Ångström façade jalapeño Šibenik Łódź",
    "cafe\u0301 nai\u0308ve A\u030angstro\u0308m",
    "İstanbul ışık ĞÜŞÖÇ ğüşöç",
    "ßtraße STRASSE ẞ ŒUVRE œuvre Æther æther ﬁ ﬂ ﬃ",
    "Ελληνικά γράμματα: Σίσυφος ΣΊΣΥΦΟΣ",
    "Съешь же ещё этих мягких французских булок, да выпей чаю",
    "Ёлка ёлка Йод йод Ї ї",
    "שלום עולם, מה שלומך?",
    "مرحبا بالعالم، كيف حالك اليوم؟",
    "\u202bעברית RTL mixed\u202c with English \u200fmarks\u200e",
    "नमस्ते दुनिया यह एक परीक्षण है",
    "สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง",
    "你好，世界！这是一个测试。",
    "日本語のテキスト、カタカナとひらがなとﾊﾝｶｸ。",
    "안녕하세요 세계 한국어 문장입니다",
    "中文English混合text测试123",
    "\U00020000\U0002a6d6 rare ideographs \u3400\uf900",
    "😀",
    "I ❤️ pizza 🍕🍕 and 👩‍👩‍👧‍👦 family 👍🏽 🇩🇪",
    "emoji😀in😀the😀middle",
    "\u0000\u0001\u0002 control \u0007 characters \u001b[31mred\u001b[0m \u007f",
    "tab\tseparated\tvalues\u000bvertical\u000cfeed\u0085next",
    "no\u00a0break\u2003em\u3000ideographic\u2028line\u2029para\u200bzero\ufeffbom",
    "soft\u00adhyphen and \ufffd replacement",
    "𝓯𝓪𝓷𝓬𝔂 𝔣𝔯𝔞𝔨𝔱𝔲𝔯 𝕕𝕠𝕦𝕓𝕝𝕖 Ⓒⓘⓡⓒⓛⓔ ｆｕｌｌｗｉｄｔｈ",
    "½ ¼ x² H₂O 10⁻⁹ Ⅷ № ™ © ®",
    "∀x∈ℝ: ∑ᵢ xᵢ² ≥ 0 → √2 ≠ 1.41 ± ε",
    "«guillemets» „Gänsefüßchen“ ‘single’ “double” — dash – en … ellipsis",
    "¿Qué tal? ¡Muy bien!",
    "Z̸̡̛a̶͎͝l̵̙̈g̷̱̈o̶̺͗ text",
    "[CLS] [SEP] [MASK] [PAD] [UNK]",
    "text with [MASK] inside and [SEP] too",
    "##ing ##s #hashtag @mention",
    "<b>html &amp; entities</b> <!-- comment -->",
    "{\"json\": [1, 2, {\"a\": null}], \"t\": true}",
    "SELECT * FROM t WHERE a = 'b' ORDER BY c DESC;",
    "   leading and trailing   spaces   everywhere   ",
    "line one\nline two\r\nline three\rline four",
    "....... !!!!!!! ------- ??????? ,,,,,,,",
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen",
    LOREM,
    LOREM * 2,
    LOREM * 4,
    LOREM * 6,
    LOREM * 8,
    LOREM * 40,
    "word " * 253,
    "word " * 254,
    "word " * 255,
    "word " * 300,
    "中" * 400,
    "😀 " * 300,
    "!" * 1000,
    "Two sentences. They are here to be compared with the next line.",
    "These two sentences stand here so that the line above can be compared with them.",
]


def main():
    torch.set_num_threads(1)
    model = SentenceTransformer(sys.argv[1], device="cpu")
    model.eval()
    for text in TEXTS:
        ids = model.preprocess([text])["input_ids"][0].tolist()
        vector = model.encode([text], batch_size=1, convert_to_numpy=True, show_progress_bar=False)[0]
        assert str(vector.dtype) == "float32" and len(vector) == 384
        line = {"text": text, "ids": ids, "embedding": [0]}
        head = json.dumps(line, ensure_ascii=True)[: -len("0]}")]
        print(head + ", ".join("%.9g" % float(x) for x in vector) + "]}")


main()
