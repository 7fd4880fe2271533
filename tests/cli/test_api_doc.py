#!/usr/bin/env python3
"""tools/api-doc: what it takes for a declaration and its comment, and that a missing comment is noticed."""
import importlib.machinery
import importlib.util
import os
import pathlib
import subprocess
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "api-doc"
loader = importlib.machinery.SourceFileLoader("api_doc", str(TOOL))
api_doc = importlib.util.module_from_spec(importlib.util.spec_from_loader("api_doc", loader))
loader.exec_module(api_doc)

HEADER = """/* Things. And more of them.
 *
 *     trn_thing *t = trn_thing_new();  // made
 *
 * Rules
 * - a*b < c */
#ifndef TRAINERA_THING_H
#define TRAINERA_THING_H

#include <trainera/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct trn_thing trn_thing;

/* ---- making ------- */

/* Makes one,
 * or not. */
TRN_API trn_thing *trn_thing_new(void) TRN_MUST_USE;
TRN_API void trn_thing_free(TRN_OWN trn_thing *t); /* NULL is fine */
static inline int trn_thing_two(int a) { return a < 2 ? (a) : 2; } /* at most */

TRN_API int trn_thing_bare(const char *fmt, ...) TRN_PRINTF(1, 2);

/* Options. */
typedef struct trn_thing_opts {
    int a; /* one; two */
} trn_thing_opts;
typedef void (*trn_thing_fn)(void *arg);
#define TRN_THING(a) \\
    (a)

#ifdef __cplusplus
}
#endif
#endif
"""


class ApiDoc(unittest.TestCase):
    def setUp(self):
        tmp = tempfile.TemporaryDirectory()
        self.addCleanup(tmp.cleanup)
        self.top = pathlib.Path(tmp.name)
        (self.top / "include" / "trainera").mkdir(parents=True)
        (self.top / "include" / "trainera" / "thing.h").write_text(HEADER)
        old = api_doc.TOP
        api_doc.TOP = self.top
        self.addCleanup(setattr, api_doc, "TOP", old)

    def test_items(self):
        opening, items = api_doc.parse(HEADER)
        self.assertEqual(api_doc.sentence(opening), "Things.")
        self.assertEqual([i if isinstance(i, str) else i.names for i in items],
                         [["trn_thing"], "making", ["trn_thing_new"], ["trn_thing_free"], ["trn_thing_two"], ["trn_thing_bare"], ["trn_thing_opts"], ["trn_thing_fn"], ["TRN_THING"]])

    def test_page(self):
        text = api_doc.page("thing", *api_doc.parse(HEADER))
        self.assertIn("# thing.h\n\nThings. And more of them.\n\n```c\ntrn_thing *t = trn_thing_new();  // made\n```\n\nRules\n\n- a\\*b &lt; c\n", text)
        self.assertIn("## Making\n\nMakes one,\nor not.\n", text)
        self.assertIn("```c\ntrn_thing *trn_thing_new(void);\nvoid trn_thing_free(TRN_OWN trn_thing *t); /* NULL is fine */\nint trn_thing_two(int a); /* at most */\n```", text)
        self.assertIn("int trn_thing_bare(const char *fmt, ...);\n", text)
        self.assertNotIn("extern", text)

    def test_missing_comment(self):
        self.assertEqual(api_doc.uncommented(), ["include/trainera/thing.h: trn_thing_bare has no comment"])

    def test_ops(self):
        ops = pathlib.Path(os.environ["OPS_H"])
        opening, items = api_doc.parse(ops.read_text())
        text = api_doc.ops_page(opening, items)
        self.assertIn("**MatMul** `trn_op_mat_mul(b, a, b_, opts)` The product of two matrices, each transposed on request. `a:T, b:T -> product:T; transpose_a:bool=false,", text)
        self.assertEqual(text.count("\n- <a id="), sum(isinstance(i, api_doc.Item) and bool(i.function) for i in items))
        self.assertTrue(all(i.comment or i.names for i in items if isinstance(i, api_doc.Item)))

    def test_real_headers(self):
        r = subprocess.run([TOOL, "--comments"], capture_output=True, text=True)
        self.assertEqual(r.stderr, "")
        self.assertEqual(r.returncode, 0)


if __name__ == "__main__":
    unittest.main()
