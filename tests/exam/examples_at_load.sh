#!/bin/bash
# Run each example beside busy loops, and count what it told of stalls, hangs and stragglers: asked are none.
#
#   unshare -nmu bash tests/laptop.sh bash tests/exam/examples_at_load.sh [LOOPS]    from the root; 20 loops by default
#
# TF_PYTHON names a Python that has tensorflow-cpu (tests/frameworks/environment.py makes one); without it tf-ps fails.
set -u
root=$PWD loops=${1:-20} work=$(mktemp -d)
export PATH=$root/.venv/bin:$PATH OMP_NUM_THREADS=1
# A session of its own, as another terminal's `make -j20` has: the kernel shares the CPUs by session.
setsid bash -c "for _ in \$(seq $loops); do (while :; do :; done) & done; wait" &
loops_session=$!
trap 'pkill -9 -s "$loops_session"; rm -rf "$work"' EXIT
sleep 20
for example in "$root"/examples/*/; do
  name=$(basename "$example") && cp -r "$example" "$work/$name" && cd "$work/$name" || exit 1
  export DLJOB_HOME=$work/home-$name
  options=()
  case $name in
    ppo-tiny) options=(--pretend GPU=4) ;;
    online) python events.py /tmp/clicks.log & ;;
    tf-ps) sed -i "s#^    entrypoint:#    python: ${TF_PYTHON:-python}\n    entrypoint:#" dljob.yaml ;;
  esac
  timeout 420 dljob run dljob.yaml -q "${options[@]}" > output 2>&1
  ended=$? alarms=$(cat "$DLJOB_HOME"/jobs/*/events.jsonl | grep -cE '"(StallFound|HangFound|StragglerFound)"')
  echo "$name: exit code $ended, load $(cut -d' ' -f1 /proc/loadavg), alarms: $alarms"
done
