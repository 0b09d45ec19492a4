#!/bin/sh
# Writes PULSAR_PREFIX_<key>=<value> from the environment to a configuration file, as
# bin/apply-config-from-env.py of the official image does; the Dockerfile gives it that name.
#
# usage: apply-config-from-env.py FILE
set -eu
file=$1
newline='
'
# Always from the original, so that a restarted container does not collect lines: a key must stand
# once, because the bookie joins double ones into a list.
[ -e "$file.original" ] || cp "$file" "$file.original"

overrides=$(env | while IFS= read -r line; do
  case $line in PULSAR_PREFIX_*=*) printf '%s\n' "${line#PULSAR_PREFIX_}" ;; esac
done)

{
  while IFS= read -r line; do
    case "$newline$overrides" in
      *"$newline${line%%=*}="*) ;; # overridden
      *) printf '%s\n' "$line" ;;
    esac
  done <"$file.original"
  printf '%s\n' "$overrides"
} >"$file"
