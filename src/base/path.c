/* Names of files that are URIs. */
#include "base/base.h"

#include <ctype.h>

/* Length of "file" in "file://…"; 0 for what is no URI. TensorFlow's rule: a letter, then letters, digits and dots. */
static size_t scheme(const char *name)
{
    size_t n = 0;
    if (isalpha((unsigned char)name[0]))
        while (isalnum((unsigned char)name[n]) || name[n] == '.')
            n++;
    return n && strncmp(name + n, "://", 3) == 0 ? n : 0;
}

const char *trn_local_path(const char *name)
{
    size_t n = scheme(name);
    if (!n)
        return name;
    const char *path = strchr(name + n + 3, '/');
    return path ? path : "/";
}

trn_err trn_check_scheme(const char *name)
{
    size_t n = scheme(name);
    if (!n || (n == 4 && memcmp(name, "file", 4) == 0))
        return TRN_OK;
    return trn_errorf(TRN_UNIMPLEMENTED, "File system scheme '%.*s' not implemented (file: '%s'): there are only local files", (int)n, name, name);
}
