# shellcheck shell=bash
# Sourced by tests of jobs on two hosts: network namespaces with a cable between them, $here and $there. Rank 0, which is here,
# serves the store. The rest is as in processes.sh.
#
#   start_on "$there" 2 TUTTI_HEARTBEAT=3 -- program
if [[ $(id -u) != 0 && ! ${TUTTI_IN_NAMESPACE:-} ]]; then
  TUTTI_IN_NAMESPACE=yes exec unshare --user --map-root-user --net --mount bash -c 'mount -t tmpfs none /run && exec "$@"' - "$0" "$@"
fi
# shellcheck source=tests/fault/processes.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/processes.sh"
here=tutti-here-$$ there=tutti-there-$$
port=29500

clean_up_hosts() {
  clean_up
  ip netns delete "$here" 2>/dev/null
  ip netns delete "$there" 2>/dev/null
}
trap clean_up_hosts EXIT

if ! { ip netns add "$here" && ip netns add "$there" &&
  ip -n "$here" link add cable type veth peer name cable netns "$there" &&
  ip -n "$here" address add 10.77.0.1/24 dev cable && ip -n "$there" address add 10.77.0.2/24 dev cable &&
  ip -n "$here" link set cable up && ip -n "$there" link set cable up &&
  ip -n "$here" link set lo up && ip -n "$there" link set lo up; }; then
  fail "the network namespaces could not be made"
fi

start_on() {  # <host> <rank> [<variable>=<value>]... -- <program> [<argument>]...
  local on=(ip netns exec "$1") rank=$2
  shift 2
  start "$rank" MASTER_ADDR=10.77.0.1 TORCHELASTIC_USE_AGENT_STORE=False "$@"
}
