/* What --native-workers puts on PYTHONPATH: a sitecustomize that makes tf.train.Server (tf.distribute.Server) a native one. */
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/launch.h"

static const char module[] =
    "\"\"\"Put on PYTHONPATH by `trainera launch --native-workers`: a program's tf.train.Server becomes a Trainera server.\"\"\"\n"
    "import importlib.abc\n"
    "import importlib.machinery\n"
    "import os\n"
    "import sys\n"
    "\n"
    "_DIR = os.path.dirname(os.path.abspath(__file__))\n"
    "_BIN = os.environ.get('TRAINERA_BIN')\n"
    "_MODULE = 'tensorflow.python.training.server_lib'\n"
    "\n"
    "\n"
    "def _replace(lib):\n"
    "    import subprocess\n"
    "    import tempfile\n"
    "    from tensorflow.python.framework import errors\n"
    "\n"
    "    class Server(lib.Server):\n"
    "        def __init__(self, server_or_cluster_def, job_name=None, task_index=None, protocol=None, config=None, start=True):\n"
    "            self._server_def = lib._make_server_def(server_or_cluster_def, job_name, task_index, protocol, config)\n"
    "            self._process = self._target = None\n"
    "            if start:\n"
    "                self.start()\n"
    "\n"
    "        def start(self):\n"
    "            if self._process:\n"
    "                return\n"
    "            with tempfile.NamedTemporaryFile(suffix='.server_def') as f:\n"
    "                f.write(self._server_def.SerializeToString())\n"
    "                f.flush()\n"
    "                ready, ready_w = os.pipe()\n"
    "                life_r, self._life = os.pipe()  # ends with this process, and the server with it\n"
    "                level = os.environ.get('TRAINERA_LOG', 'warn')\n"
    "                self._process = subprocess.Popen(\n"
    "                    [_BIN, 'serve', '--server_def', f.name, '--ready-fd', str(ready_w), '--lifeline-fd', str(life_r), '--log-level', level],\n"
    "                    pass_fds=(ready_w, life_r), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)\n"
    "                os.close(ready_w)\n"
    "                os.close(life_r)\n"
    "                with os.fdopen(ready, 'rb') as r:\n"
    "                    line = r.readline().decode().strip()\n"
    "            if not line:\n"
    "                code = self._process.wait()\n"
    "                self._process = None\n"
    "                raise errors.UnknownError(None, None, 'Could not start the Trainera server of this task (exit code %d); its last line says why' % code)\n"
    "            self._target = line\n"
    "\n"
    "        def join(self):\n"
    "            self._process.wait()\n"
    "\n"
    "        def __del__(self):\n"
    "            pass\n"
    "\n"
    "        @property\n"
    "        def server_def(self):\n"
    "            return self._server_def\n"
    "\n"
    "        @property\n"
    "        def target(self):\n"
    "            return self._target\n"
    "\n"
    "    Server.__doc__ = lib.Server.__doc__\n"
    "    Server.__module__ = lib.Server.__module__\n"
    "    lib.Server = Server\n"
    "\n"
    "\n"
    "class _Loader(importlib.abc.Loader):\n"
    "    def __init__(self, inner):\n"
    "        self._inner = inner\n"
    "\n"
    "    def create_module(self, spec):\n"
    "        return self._inner.create_module(spec)\n"
    "\n"
    "    def exec_module(self, module):\n"
    "        self._inner.exec_module(module)\n"
    "        _replace(module)\n"
    "\n"
    "    def __getattr__(self, name):\n"
    "        return getattr(self._inner, name)\n"
    "\n"
    "\n"
    "class _Finder(importlib.abc.MetaPathFinder):\n"
    "    def find_spec(self, name, path=None, target=None):\n"
    "        if name != _MODULE:\n"
    "            return None\n"
    "        spec = importlib.machinery.PathFinder.find_spec(name, path, target)\n"
    "        if spec and spec.loader:\n"
    "            spec.loader = _Loader(spec.loader)\n"
    "        return spec\n"
    "\n"
    "\n"
    "if _BIN:\n"
    "    sys.meta_path.insert(0, _Finder())\n"
    "\n"
    "# The machine's own sitecustomize, which this one hides.\n"
    "_spec = importlib.machinery.PathFinder.find_spec('sitecustomize', [p for p in sys.path if os.path.abspath(p or '.') != _DIR])\n"
    "if _spec and _spec.loader:\n"
    "    import importlib.util\n"
    "    _spec.loader.exec_module(importlib.util.module_from_spec(_spec))\n";

trn_err launch_py_write(char **dir)
{
    const char *tmp = getenv("TMPDIR");
    char *path = trn_xasprintf("%s/trainera-py-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(path)) {
        trn_err err = trn_err_errno(errno, "cannot make the folder %s for --native-workers", path);
        free(path);
        return err;
    }
    char *file = trn_xasprintf("%s/sitecustomize.py", path);
    trn_err err = cli_write_file(file, module);
    free(file);
    if (err) {
        launch_py_remove(path);
        free(path);
        return err;
    }
    *dir = path;
    return TRN_OK;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    return remove(path) != 0 && errno != ENOENT ? -1 : 0;
}

/* Python has put its compiled form beside the module. */
void launch_py_remove(const char *dir) { nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS); }
