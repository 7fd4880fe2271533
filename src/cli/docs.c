/* trainera completion, trainera man: made from the same tables as --help, so that they cannot lag behind. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"

/* ---- bash completion ----------------------------------------------------------------------------------------------- */

static void flag_words(const cli_command *c)
{
    for (const cli_flag *f = c->flags; f && f->name; f++)
        if (f->help)
            printf(" --%s%s", f->name, f->kind == CLI_BOOL ? "" : "=");
}

static int completion(int argc, char **argv)
{
    cli_list rest = {0};
    trn_err err = cli_parse(&(int){0}, (const cli_flag[]){{0}}, argc, argv, &rest);
    if (!err && (rest.n > 1 || (rest.n == 1 && strcmp(rest.v[0], "bash") != 0)))
        err = trn_errorf(TRN_INVALID_ARGUMENT, "only bash is known: trainera completion bash");
    free(rest.v);
    if (err)
        return cli_fail(err, CLI_USAGE);
    printf("# bash completion of trainera " TRAINERA_VERSION ", made by: trainera completion bash\n"
           "_trainera() {\n"
           "    local cur words\n"
           "    COMPREPLY=()\n"
           "    cur=${COMP_WORDS[COMP_CWORD]}\n"
           "    if [ \"$COMP_CWORD\" -eq 1 ] || { [ \"$COMP_CWORD\" -eq 2 ] && [ \"${COMP_WORDS[1]}\" = help ]; }; then\n"
           "        COMPREPLY=($(compgen -W '");
    for (int i = 0; cli_at(i); i++)
        printf("%s ", cli_at(i)->name);
    printf("help --help --version' -- \"$cur\"))\n"
           "        return\n"
           "    fi\n"
           "    case ${COMP_WORDS[1]} in\n");
    for (int i = 0; cli_at(i); i++) {
        printf("    %s) words='", cli_at(i)->name);
        flag_words(cli_at(i));
        printf(" --help' ;;\n");
    }
    printf("    *) words= ;;\n"
           "    esac\n"
           "    if [[ $cur == -* ]]; then\n"
           "        compopt -o nospace 2>/dev/null\n"
           "        COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
           "    else\n"
           "        compopt -o filenames 2>/dev/null\n"
           "        COMPREPLY=($(compgen -f -- \"$cur\"))\n"
           "    fi\n"
           "}\n"
           "complete -F _trainera trainera\n");
    return CLI_OK;
}

/* ---- the man page ---------------------------------------------------------------------------------------------------- */

/* Text as roff wants it: no line begins with a dot or quote by accident, a hyphen is a hyphen. */
static void roff(const char *text)
{
    bool start = true;
    for (const char *p = text; p && *p; p++) {
        if (start && (*p == '.' || *p == '\''))
            printf("\\&");
        if (*p == '\\')
            printf("\\e");
        else if (*p == '-')
            printf("\\-");
        else
            putchar(*p);
        start = *p == '\n';
    }
}

static void man_command(const cli_command *c)
{
    printf(".SS trainera %s ", c->name);
    roff(c->usage ? c->usage : "");
    printf("\n");
    char *summary = trn_xstrdup(c->summary);
    summary[0] = (char)toupper((unsigned char)summary[0]);
    roff(summary);
    printf("%s\n", *summary && summary[strlen(summary) - 1] != '.' ? "." : "");
    free(summary);
    for (const cli_flag *f = c->flags; f && f->name; f++) {
        if (!f->help)
            continue;
        printf(".TP\n\\fB\\-\\-");
        roff(f->name);
        printf("\\fR");
        if (f->arg) {
            printf("=\\fI");
            roff(f->arg);
            printf("\\fR");
        }
        printf("\n");
        roff(f->help);
        printf("\n");
    }
    if (c->details && *c->details) {
        printf(".PP\n.nf\n");
        roff(c->details);
        printf(".fi\n");
    }
}

static int man(int argc, char **argv)
{
    trn_err err = cli_parse(&(int){0}, (const cli_flag[]){{0}}, argc, argv, NULL);
    if (err)
        return cli_fail(err, CLI_USAGE);
    printf(".\\\" Made by: trainera man\n"
           ".TH TRAINERA 1 \"\" \"trainera " TRAINERA_VERSION "\" \"User Commands\"\n"
           ".SH NAME\n"
           "trainera \\- parameter\\-server training, served to unchanged TensorFlow programs\n"
           ".SH SYNOPSIS\n"
           ".B trainera\n\\fICOMMAND\\fR [\\fIFLAGS\\fR]\n"
           ".br\n"
           ".B trainera help\n\\fICOMMAND\\fR\n"
           ".SH DESCRIPTION\n"
           "One program that serves the ps and worker tasks of a cluster, starts whole jobs, shows what they do and looks into what they leave behind.\n"
           "\\(aq\\-\\(aq and \\(aq_\\(aq are the same in flags; \\-\\-flag value works as well as \\-\\-flag=value.\n"
           ".SH COMMANDS\n");
    for (int i = 0; cli_at(i); i++)
        man_command(cli_at(i));
    printf(".SH EXIT STATUS\n"
           "0: ended as asked. 1: could not do it. 2: wrong flags. Whatever failed is the last line on standard error:\n"
           "\"trainera: CODE MESSAGE\", CODE being gRPC\\(aqs.\n"
           ".SH ENVIRONMENT\n"
           ".TP\n.B TF_CONFIG\nThe cluster and this task, as TensorFlow has it.\n"
           ".TP\n.B TRAINERA_LOG\nThe log level where no flag gives it: debug, info, warn, error, off.\n");
    return CLI_OK;
}

static const cli_flag none[] = {{0}};
const cli_command cli_completion = {
    .name = "completion",
    .usage = "bash",
    .summary = "completion of commands and flags for the shell",
    .details = "  source <(trainera completion bash)      in this shell; make install puts it where bash finds it\n",
    .flags = none,
    .run = completion,
};
const cli_command cli_man = {
    .name = "man",
    .usage = "",
    .summary = "this help as a man page",
    .details = "  trainera man | man -l -      make install puts it where man finds it\n",
    .flags = none,
    .run = man,
};
