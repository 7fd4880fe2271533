"""Regular expressions: odd patterns on odd texts, and random ones."""
import re

from kernels import Case as C
from strings import s

PATTERNS = [
    "s3://.*", "^s3://.*", "", "a", "a*", "a+b?", "(a|b)*c", r"\d+", r"\w+\s\w+", r"[^a-c]+", r"[a-c0-9]*", "(?i)AbC", "(?:ab)+", r"a{2,3}",
    r"a{2}", r"a{2,}", "a{,3}", "a{", "x{1001}", "a**", "*a", "(a", "a)", "[a", "[b-a]", r"\1", r"\q", "a|", "|a", "()", "(?P<n>a)b", ".", ".*", "(?s).*",
    r"\bfoo\b", r"\Bo", "^a$", "(?m)^a$", "[[:alpha:]]+", "[[:^digit:]]+", "[[:nope:]]", r"\Qa.b\E+", r"\x61", r"\x{e9}", "é", "[é-ü]+", r"\.", r"[\d\-x]+",
    "[]a]+", "[a-]+", "a??", "(a*)*", "(a*)+b", "(a|ab)(c|bcd)(d*)", r"\pN", r"\141", r"[\n\t ]+", "(?i)[a-c]+", "$", "^", r"\A\z", "(?U)a+", "(?-s).", "(?", "(?z)a",
    "a.c", "日.語", r"\S+", r"\D*", r"\W", "(((((a)))))", "(a{10}){10}", r"\0", "(?i:a)b", "[^\\n]*", "a\\", "(|a)*", "(|a)+", "x*y*z*", "a-b", r"\_", r"\-", r"[[:word:]]",
]
TEXTS = [
    "", "a", "b", "ab", "aab", "aaa", "abab", "aabbc", "s3://bucket/x", "gs://b", "S3://x", "foo bar", "foo", "  foo", "123", "a1", "ABC", "abc", "é", "aéü", "日本語",
    "a.b", "a.bb", "a\nb", "\n", "a\n", "a\0b", b"\xff", b"a\xffc", "]", "-x-1", "aaaa", "abcd", "x_y z", "foofoo foo", "a{", "a{,3}", "\t", "_", "A" * 20, "a" * 100, "a c",
]


CLASSES = ["L", "Ll", "Lu", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N", "Nd", "Nl", "No", "P", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm", "Sc", "Sk", "So", "Z", "Zs", "Zl", "Zp",
           "C", "Cc", "Cf", "Co", "Cs", "Any", "Greek", "Latin", "Cyrillic", "Han", "Hiragana", "Old_Italic", "Nko", "SignWriting", "Common", "Inherited", "Arabic", "Kawi", "Nag_Mundari"]


def cases_regex_unicode(rng, quick):
    """Classes of characters: all of them (in pieces), in brackets, negated, with mistakes in their names."""
    every = [chr(c).encode("utf-8", "surrogatepass") for c in range(0, 0x110000, 97 if quick else 5)]
    every += [chr(c).encode() for c in range(0x3000)] + [b"\xff", b"\xc3", b"ab", b""]
    texts = s(every)
    words = s(["", "a", "A", "é", "É", "ǅ", "ab1", "αβγ", "Привет", "日本", "_", "٣", "a\u0301", " ", "\u2028", "$€", "x = y + 1", "ﬁ", b"\xff", "\U0001f600"])
    for c in CLASSES:
        yield C("StaticRegexFullMatch", [texts], pattern=r"\p{%s}" % c)
        yield C("StaticRegexReplace", [words], pattern=r"\P{%s}" % c, rewrite="-")
    for p in (r"\pL", r"\PL", r"\pN+", r"\p{^L}", r"\P{^L}", r"[\p{Lu}\p{Nd}_]+", r"[^\pL\s]+", r"[\PL\d]", r"[\p{^Greek}]+", r"(?i)\p{Greek}+", r"\p{L}{2,}", r"(\pL)(\pM*)", r"\pLl", r"\p", r"\p{", r"\p{}", r"\p{L",
              r"\p{Xx}", r"\p{greek}", r"\p{Cn}", r"\p{Unknown}", r"\p{Zzzz}", r"\p{lu}", r"\pX", r"\p^L", r"\p{^}", r"\P", r"[\p", r"[\p{Greek]", r"[\pX]", r"\pé", r"[a-\pL]", r"\Q\pL\E", r"\p{Any}*",
              r"\p{Grek}", r"\p{L}" * 100):
        yield C("StaticRegexFullMatch", [words], pattern=p)
        yield C("StaticRegexReplace", [words], pattern=p, rewrite="<\\0>")
    yield C("StaticRegexFullMatch", [words], pattern=r"\pL" * 20000, code=3)
    yield C("StaticRegexFullMatch", [words], pattern="[" + r"\pL" * 20000 + "]", code=3)


def cases_regex_fold(rng, quick):
    """Case does not matter: all characters against each other, in pieces; ranges and classes."""
    cased = [c for c in range(0x20000) if not 0xd800 <= c < 0xe000 and (chr(c).lower() != chr(c) or chr(c).upper() != chr(c) or chr(c).casefold() != chr(c))]
    texts = s([chr(c) for c in cased] + ["", "ab", "K", "ß", "ẞ", "SS", "ſ", "İ", "i", "ı", "I"])
    for i in range(0, len(cased), 400 if quick else 7):
        yield C("StaticRegexFullMatch", [texts], pattern="(?i)" + chr(cased[i]))
        yield C("StaticRegexFullMatch", [texts], pattern="(?i)[" + "".join(chr(c) for c in cased[i:i + 40:3]) + "]")
        yield C("StaticRegexFullMatch", [texts], pattern="(?i)[^%s-%s]" % (chr(cased[i]), chr(cased[min(i + 50, len(cased) - 1)])))
    for p in (r"\w", r"\W", r"[\w]", r"[^\w]", r"\s", r"\d", r"\p{Lu}", r"\p{Ll}", r"\P{Lu}", r"\p{Greek}", r"\pN", r"[[:alpha:]]", r"[[:^alpha:]]", "[a-z]", "[^a-z]", "k", "s", "ß", "[À-ö]", "σ", "[α-ω]", "\\x{1c4}", "i", "İ", "ﬁ"):
        yield C("StaticRegexFullMatch", [texts], pattern="(?i)" + p)
        yield C("StaticRegexFullMatch", [texts], pattern="(?i)x|(?-i:%s)" % p)
    yield C("StaticRegexReplace", [s(["ΑΣ ας ασ ΑΣ", "straße STRASSE", "ПРИВЕТ привет Привет"])], pattern="(?i)ασ|strasse|привет", rewrite="<\\0>")


def cases_regex_more(rng, quick):
    texts = s(TEXTS)
    for p in PATTERNS:
        yield C("StaticRegexFullMatch", [texts], pattern=p)
        yield C("RegexFullMatch", [texts, s(p)])
        for rewrite in ("", "<\\0>", "[\\1]", "\\\\", "x\\q", "\\", "\\9"):
            for glob in (True, False):
                yield C("StaticRegexReplace", [texts], pattern=p, rewrite=rewrite, replace_global=glob)
    # Nothing, a thousand million times: RE2 takes it, we need not, but at once.
    yield C("StaticRegexFullMatch", [s("a")], pattern="(?:(?:(?:(?:){1000}){1000}){1000}){1000}", code=3)
    yield C("RegexReplace", [s(["abc", "xbz"]), s("b"), s("-")])
    yield C("RegexReplace", [s(["abc", "xbz"]), s(["b"]), s("-")])
    yield C("RegexReplace", [s(["abc", "xbz"]), s("b"), s(["-"])])
    yield C("RegexFullMatch", [s("a"), s(["b"])])
    yield C("RegexFullMatch", [s([["a", "b"]]), s("b")])
    words = s(["", "a", "b", "ab", "ba", "aab", "abab", "bbb", "aabba", "c", "ac ab"])
    for p in ("(([^a])*?){2,}a(a|b)", "((a)*?){1,}b", "((a*?){1,})b", "((a|b)*?){1,}c", "(a??){1,}b", "((a)*?)+b", "((?:[^a])+?){0,2}?\\ba", "(a+?){1,3}?b"):
        yield C("StaticRegexReplace", [words], pattern=p, rewrite="<\\0,\\1>")
    for _ in range(100 if quick else 3000):
        p = random_pattern(rng, 3)
        yield C("StaticRegexFullMatch", [words], pattern=p)
        yield C("StaticRegexReplace", [words], pattern=p, rewrite="<\\0,\\1>" if re.search(r"\((?!\?)", p) else "<\\0>")


def random_pattern(rng, depth):
    kind = rng.randint(0, 6 if depth else 2)
    if kind == 0:
        return "ab"[rng.randint(2)]
    if kind == 1:
        return ["a", "b", ".", "[ab]", "[^a]", "^", "$", "\\b", "\\B", "", "\\w"][rng.randint(11)]
    if kind == 2:
        return random_pattern(rng, depth - 1) + random_pattern(rng, depth - 1)
    if kind == 3:
        return "(%s|%s)" % (random_pattern(rng, depth - 1), random_pattern(rng, depth - 1))
    repeats = ["*", "+", "?", "*?", "+?", "??", "{1,2}", "{2}", "{0,2}?", "{1,}", "{2,}", "{1,}?", "{0,}", "{1,3}?"]
    return ["(%s)", "(?:%s)"][rng.randint(2)] % random_pattern(rng, depth - 1) + repeats[rng.randint(len(repeats))]
