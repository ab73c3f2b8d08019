#compdef cdc-relay
# Completion of cdc-relay for zsh: eval "$(cdc-relay completion zsh)"

_cdc_relay() {
  local flag=
  [[ ${words[CURRENT]} != -* ]] || flag=${words[CURRENT]}
  local -a found
  found=("${(@f)$("${(@)words[1,CURRENT-1]}" "$flag" --generate-bash-completion 2>/dev/null)}")
  if [[ -n ${found[1]} ]]; then
    compadd -- "${found[@]}"
  else
    _files
  fi
}

if [[ ${funcstack[1]} == _cdc-relay ]]; then
  _cdc_relay # loaded by compinit
else
  compdef _cdc_relay cdc-relay
fi
