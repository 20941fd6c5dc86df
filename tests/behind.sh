#!/bin/bash
# Run a command behind everything else that this machine does.
#
#   bash tests/behind.sh COMMAND...
#
# Where the kernel shares the processor among sessions (sched_autogroup), `chrt --idle` and `nice` hold within a session
# only, and the command would take half of it. So it gets a session of its own, and the session the least share.
# Ctrl-C does not reach another session: it is handed on as SIGTERM, to all that the command started.
set -u
# Ray's workers are nice themselves (15): in a kernel without such groups only who is idle gets out of their way.
low='{ echo 19 > /proc/self/autogroup; } 2>/dev/null
command -v chrt >/dev/null && exec chrt --idle 0 "$@"
exec nice -n 19 "$@"'

setsid --wait bash -c "$low" _ "$@" &
command=$!
trap 'kill -TERM -- "-$command" 2>/dev/null || kill -TERM "$command"' INT TERM HUP
wait "$command"
code=$?
trap - INT TERM HUP
# A signal ends the first wait before the command has ended.
[ "$code" -le 128 ] || wait "$command" 2>/dev/null || code=$?
exit "$code"
