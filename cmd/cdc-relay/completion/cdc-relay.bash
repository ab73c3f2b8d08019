# shellcheck shell=bash
# Completion of cdc-relay for bash: eval "$(cdc-relay completion bash)"

_cdc_relay() {
  local current=${COMP_WORDS[COMP_CWORD]} flag=
  [[ $current != -* ]] || flag=$current
  mapfile -t COMPREPLY < <(compgen -W "$("${COMP_WORDS[@]:0:COMP_CWORD}" "$flag" --generate-bash-completion 2>/dev/null)" -- "$current")
}

complete -o bashdefault -o default -F _cdc_relay cdc-relay
