/* Which process listens on a port, as far as /proc lets us see. */
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/cli.h"

static uint64_t listening_inode(const char *table, int port)
{
    FILE *f = fopen(table, "re");
    if (!f)
        return 0;
    char line[512];
    uint64_t found = 0;
    while (!found && fgets(line, sizeof line, f)) {
        unsigned local_port, state;
        unsigned long long inode;
        /* sl local_address rem_address st tx:rx tr:tm retrnsmt uid timeout inode */
        if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s %*d %*d %llu", &local_port, &state, &inode) == 3 && state == 10 && (int)local_port == port)
            found = inode;
    }
    fclose(f);
    return found;
}

static bool holds(const char *pid, const char *link)
{
    char path[64], target[64], file[400];
    snprintf(path, sizeof path, "/proc/%.16s/fd", pid);
    DIR *d = opendir(path);
    if (!d)
        return false;
    bool found = false;
    for (struct dirent *e; !found && (e = readdir(d));) {
        snprintf(file, sizeof file, "%s/%s", path, e->d_name);
        ssize_t n = readlink(file, target, sizeof target - 1);
        target[n > 0 ? n : 0] = 0;
        found = strcmp(target, link) == 0;
    }
    closedir(d);
    return found;
}

bool cli_port_owner(trn_sb *out, int port)
{
    uint64_t inode = listening_inode("/proc/net/tcp", port);
    if (!inode)
        inode = listening_inode("/proc/net/tcp6", port);
    if (!inode)
        return false;
    char link[48], path[64];
    snprintf(link, sizeof link, "socket:[%llu]", (unsigned long long)inode);
    DIR *d = opendir("/proc");
    bool found = false;
    for (struct dirent *e; d && !found && (e = readdir(d));) {
        if (!isdigit((unsigned char)e->d_name[0]) || !holds(e->d_name, link))
            continue;
        found = true;
        snprintf(path, sizeof path, "/proc/%.16s/cmdline", e->d_name);
        trn_sb cmd = {0};
        trn_err_free(cli_read_file(&cmd, path, 1 << 16));
        for (size_t i = 0; i + 1 < cmd.n; i++)
            if (!cmd.p[i])
                cmd.p[i] = ' ';
        trn_sb_addf(out, "pid %s (%.80s)", e->d_name, cmd.p ? cmd.p : "?");
        trn_sb_fini(&cmd);
    }
    if (d)
        closedir(d);
    if (!found)
        trn_sb_adds(out, "a process of another user");
    return true;
}
