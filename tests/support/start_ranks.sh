#!/usr/bin/env bash
# Starts a program as so many processes of a job, in one of the ways that users do.
#
#   start_ranks.sh launch|torchrun|mpirun <processes> <tutti> <program> [arguments]
set -uo pipefail
launcher=$1 processes=$2 tutti=$3
shift 3

# One that nobody listens on. Between finding it and using it somebody else may take it: then the ranks say so.
free_port() {
  local port
  while :; do
    port=$((20000 + RANDOM % 20000))
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
  done
}

case $launcher in
  launch) exec "$tutti" launch --processes "$processes" -- "$@" ;;
  torchrun)
    # The first python3 on the PATH may not be the one that has torch.
    for python in python3 /usr/bin/python3; do
      "$python" -c 'import torch.distributed.run' 2>/dev/null || continue
      logs=$(mktemp -d)
      trap 'rm -rf "$logs"' EXIT
      # Not --standalone, whose port is always 29400: a second job would meet in the first one's store and lose it when
      # that ends. torchrun 1.13 fails on Python 3.11 where it is not told what to do with the output.
      "$python" -m torch.distributed.run --rdzv_backend c10d --rdzv_endpoint localhost:0 --monitor_interval 0.2 \
        --nproc_per_node "$processes" --no_python --redirects 1 --tee 1 --log_dir "$logs" -- "$@"
      exit
    done
    echo "No python3 here can import torch; Debian's package is python3-torch." >&2
    exit 1
    ;;
  mpirun)
    options=(--oversubscribe -n "$processes" -x "TUTTI_STORE=127.0.0.1:$(free_port)")
    [[ $(id -u) == 0 ]] && options+=(--allow-run-as-root)
    exec mpirun "${options[@]}" "$@"
    ;;
  *) echo "start_ranks.sh does not know the launcher $launcher." >&2; exit 2 ;;
esac
