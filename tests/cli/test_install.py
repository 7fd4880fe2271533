#!/usr/bin/env python3
"""`make install` as another program sees it: headers, pkg-config file, shared and static library, and nothing private among the symbols."""
import os
import pathlib
import subprocess
import tempfile
import unittest

BUILD = os.environ["TRAINERA_BUILD"]
PROGRAM = r"""
#include <stdio.h>

#include <trainera/trainera.h>

int main(void)
{
    trn_tensor *t = trn_tensor_f32(2.5f);
    trn_err err = trn_errorf(TRN_NOT_FOUND, "%s", "nobody");
    printf("%s %g %s\n", trn_dtype_name(trn_tensor_dtype(t)), *(const float *)trn_tensor_data(t), trn_err_msg(err));
    trn_err_free(err);
    trn_tensor_unref(t);
    trn_builder *b = trn_builder_new();
    trn_out x = trn_const_f32(b, 1);
    printf("%s\n", trn_out_name(b, trn_op_add_n(b, TRN_OUTS(x, x))));
    trn_builder_free(b);
    return 0;
}
"""


def run(*cmd, **kw):
    r = subprocess.run(cmd, capture_output=True, text=True, **kw)
    if r.returncode:
        raise AssertionError(f"{' '.join(cmd)}:\n{r.stdout}{r.stderr}")
    return r.stdout


class Install(unittest.TestCase):
    def setUp(self):
        tmp = tempfile.TemporaryDirectory()
        self.addCleanup(tmp.cleanup)
        self.dir = pathlib.Path(tmp.name)
        run("meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", str(self.dir / "root"))
        pc = next((self.dir / "root").rglob("trainera.pc"))
        self.prefix = pc.parents[2] if pc.parents[1].name == "lib" else pc.parents[3]
        self.env = {**os.environ, "PKG_CONFIG_PATH": str(pc.parent)}
        self.lib = pc.parents[1]

    def compile(self, *flags):
        (self.dir / "p.c").write_text(PROGRAM)
        options = run("pkg-config", f"--define-variable=prefix={self.prefix}", "--cflags", "--libs", *flags, "trainera", env=self.env).split()
        if "--static" in flags:  # ours static, the others as they come
            options = [str(self.lib / "libtrainera.a") if o == "-ltrainera" else o for o in options]
        run(os.environ.get("CC", "cc"), "-Wall", "-Wextra", "-Werror", "-pedantic", "-std=c17", "-o", str(self.dir / "p"), str(self.dir / "p.c"), *options)
        return run(str(self.dir / "p"), env={**self.env, "LD_LIBRARY_PATH": str(self.lib)})

    def test_shared(self):
        self.assertEqual(self.compile(), "float 2.5 nobody\nAddN:0\n")

    def test_man_page_and_completion(self):
        man = next((self.dir / "root").rglob("man1/trainera.1*"))
        text = man.read_text()
        self.assertIn(".SS trainera serve", text)
        self.assertIn("\\-\\-ps_hosts", text)
        completion = next((self.dir / "root").rglob("bash-completion/completions/trainera"))
        run("bash", "-n", str(completion))

    def test_static(self):
        self.assertEqual(self.compile("--static"), "float 2.5 nobody\nAddN:0\n")

    def test_program(self):
        self.assertIn("trainera ", run(str(self.prefix / "bin" / "trainera"), "--version"))

    def test_symbols(self):
        names = [line.split()[-1] for line in run("nm", "-D", "--defined-only", str(self.lib / "libtrainera.so")).splitlines()]
        self.assertIn("trn_tensor_f32", names)
        self.assertEqual([n for n in names if not n.startswith("trn_")], [])
        self.assertNotIn("trn_arena_new", names)


if __name__ == "__main__":
    unittest.main()
