/* --allow-path: file ops stay inside the folders that the operator named. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include "exec/plan.h"

/* The path with every symbolic link of its existing part resolved; what does not exist yet is taken as written, without "..". */
static char *resolve(const char *path)
{
    char *whole = path[0] == '/' ? trn_xstrdup(path) : NULL;
    if (!whole) {
        char *cwd = realpath(".", NULL);
        whole = trn_xasprintf("%s/%s", cwd ? cwd : "", path);
        free(cwd);
    }
    char *real = realpath(whole, NULL);
    for (char *cut = whole + strlen(whole); !real && cut > whole; cut--) {
        if (*cut != '/')
            continue;
        *cut = 0;
        char *head = realpath(*whole ? whole : "/", NULL);
        *cut = '/';
        if (!head)
            continue;
        /* Parts that do not exist must not climb out again. */
        bool climbs = false;
        for (const char *p = cut; p; p = strchr(p + 1, '/'))
            climbs |= strncmp(p, "/..", 3) == 0 && (p[3] == '/' || !p[3]);
        if (!climbs)
            real = trn_xasprintf("%s%s", strcmp(head, "/") == 0 ? "" : head, cut);
        free(head);
        break;
    }
    free(whole);
    return real;
}

static bool inside(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    return strncmp(path, dir, n) == 0 && (path[n] == '/' || !path[n] || (n == 1 && dir[0] == '/'));
}

trn_err trn_exec_check_path(const trn_exec_env *env, const char *path)
{
    TRN_TRY(trn_check_scheme(path));
    if (!env || env->n_allow_paths == 0)
        return TRN_OK;
    char *real = resolve(trn_local_path(path)); /* what will be opened */
    bool ok = false;
    for (int i = 0; real && !ok && i < env->n_allow_paths; i++) {
        char *dir = resolve(env->allow_paths[i]);
        ok = dir && inside(real, dir);
        free(dir);
    }
    free(real);
    return ok ? TRN_OK
              : trn_errorf(TRN_PERMISSION_DENIED, "%s is outside the folders this task may use (--allow-path %s%s)", path,
                           env->allow_paths[0], env->n_allow_paths > 1 ? ", …" : "");
}
