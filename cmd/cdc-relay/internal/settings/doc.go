// Package settings reads the settings of a command line program. One setting is a flag (--log-level), an environment
// variable (APP_LOG_LEVEL) and a key of a YAML file (log-level). It sets a field of a struct T that the program
// chooses, and the package knows nothing about the program.
//
// # Declaring
//
// A Setting[T] has a name, the texts for the help page, and a function that parses a text into a T. Int, Duration,
// Switch and the other constructors declare usual ones. Flags turns some settings into the flags of one command.
//
// # Precedence
//
// Read fills a T whose fields have their defaults:
//
//  1. The keys of the YAML file, in their order. The file is named by the flag or the variable of Reader.FileFlag. It
//     may contain the settings of all commands, so that they can share one: each value is checked.
//  2. The flags of the command, in the order of its help page: the flag if it is given, or else the variable. A later
//     setting that sets the same field wins. An empty variable counts only if the setting MayBeEmpty.
//  3. The files with secrets (SecretFile), for those flags of the command that have one. It is a mistake to give both
//     the value and the file in one place; else the place that overrides the other wins.
//
// So a flag overrides the environment, the environment overrides the file, and the file overrides the default. A
// setting with FlagOnly comes from its flag alone: a forgotten variable must not decide what is deleted. The variable
// of one with Everywhere counts for commands without its flag, too, as the file does.
//
// # Mistakes
//
// Each error of Read is a mistake of the user and names its place: "--mode", "--mode (from APP_MODE)" or
// "config.yaml:7". The text after that comes from the function of the setting, and names the valid values. Read goes on
// after a mistake and returns all of them, joined. Only a file that cannot be read or parsed ends it at once. No error
// contains the value of a URL or the content of a secret file.
//
// Reader.UnknownVariables and Reader.Exposed find what is no mistake but deserves a warning. Effective lists the values
// and where each comes from. Rules that involve several settings are for the program to check.
package settings
