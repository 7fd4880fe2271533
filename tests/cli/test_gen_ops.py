#!/usr/bin/env python3
"""The generator of trainera/ops.h refuses words that are missing, for nothing, or twice, and writes the names that are promised."""
import os
import pathlib
import subprocess
import tempfile
import unittest

GEN = os.environ["GEN_OPS"]
WORDS = pathlib.Path(__file__).resolve().parents[2] / "src" / "ops" / "words.tsv"


class GenOps(unittest.TestCase):
    def setUp(self):
        tmp = tempfile.TemporaryDirectory()
        self.addCleanup(tmp.cleanup)
        self.dir = pathlib.Path(tmp.name)

    def gen(self, words, *args):
        (self.dir / "words.tsv").write_text(words)
        r = subprocess.run([GEN, "words.tsv", *args], cwd=self.dir, capture_output=True, text=True, timeout=60)
        return r.returncode, r.stderr

    def refused(self, words, part):
        code, err = self.gen(words, "--header", "ops.h")
        self.assertEqual(code, 1)
        self.assertIn(part, err)

    def test_missing(self):
        lines = WORDS.read_text().splitlines(keepends=True)
        self.refused("".join(x for x in lines if not x.startswith("MatMul\t")), "no words for op MatMul")

    def test_unknown(self):
        self.refused(WORDS.read_text() + "NoSuchOp\tDoes nothing.\n", "there is no op NoSuchOp")

    def test_internal(self):
        self.refused(WORDS.read_text() + "_Send\tSends.\n", "_Send is internal")

    def test_twice(self):
        self.refused(WORDS.read_text() + "MatMul\tAgain.\n", "MatMul is there twice")

    def test_malformed(self):
        self.refused(WORDS.read_text() + "MatMul and no tab\n", "MatMul and no tab")
        self.refused("# Ends */ a comment\n", "Ends")

    def test_not_writable(self):
        code, err = self.gen(WORDS.read_text(), "--header", "no/such/folder/ops.h")
        self.assertEqual(code, 1)
        self.assertIn("cannot write", err)

    def test_names(self):
        self.assertEqual(self.gen(WORDS.read_text(), "--header", "ops.h"), (0, ""))
        text = (self.dir / "ops.h").read_text()
        for name in ("mat_mul", "conv2d", "bias_add_grad", "fused_batch_norm_v3", "lrn", "lrn_grad", "fifo_queue_v2", "l2_loss", "tf_record_reader_v2", "ifft2d", "add_n",
                     "conv2d_backprop_input", "relu6_grad", "space_to_batch_nd", "merge_v2_checkpoints", "ctc_loss", "bessel_i0e"):
            self.assertIn(f" trn_op_{name}(trn_builder *b", text)
        self.assertIn("/* The product of two matrices, each transposed on request.\n *\n *     MatMul  a:T, b:T -> product:T;", text)
        self.assertNotIn("trn_op__", text)

    def test_sources_hold_each_once(self):
        self.assertEqual(self.gen(WORDS.read_text(), "--source", "a.c", "b.c", "c.c"), (0, ""))
        found = sum((self.dir / f).read_text().count("trn_node_add(b, ") for f in ("a.c", "b.c", "c.c"))
        self.assertEqual(found, sum("\t" in x for x in WORDS.read_text().splitlines()))


if __name__ == "__main__":
    unittest.main()
