#!/bin/sh
# Tells whether something listens at PORT. Neither image has a tool for it, but the kernel lists what
# listens, with ports in hexadecimal and 0A for "listens".
#
# usage: listens.sh PORT
set -eu
port=$(printf '%04X' "$1")
for table in /proc/net/tcp /proc/net/tcp6; do
  [ -e "$table" ] || continue
  while read -r _ address _ state _; do
    [ "${address##*:} $state" != "$port 0A" ] || exit 0
  done <"$table"
done
exit 1
