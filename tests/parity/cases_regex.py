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


def cases_regex_more(rng, quick):
    texts = s(TEXTS)
    for p in PATTERNS:
        if p == r"\pN":  # ours are without Unicode classes
            yield C("StaticRegexFullMatch", [texts], pattern=p, code=3)
            continue
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
