/* The table of commands, and what is said about all of them at once. */
#ifndef EBB_CLIENT_COMMANDS_H
#define EBB_CLIENT_COMMANDS_H

#include "client/client.h"

/* argv[0] is the first word behind "ebb"; *words: how many belong to the command's name. NULL: there is none. */
const struct command *command_find(int argc, char **argv, int *words);
int command_unknown(int argc, char **argv); /* says so, with a suggestion; gives the exit code */
void commands_help(FILE *to);
void commands_man(FILE *to);

#endif
