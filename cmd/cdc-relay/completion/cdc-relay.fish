# Completion of cdc-relay for fish: cdc-relay completion fish > ~/.config/fish/completions/cdc-relay.fish

function __cdc_relay
    set -l current (commandline -ct)
    set -l flag ''
    string match -q -- '-*' "$current"; and set flag $current
    set -l before (commandline -opc)
    set -l found ($before "$flag" --generate-bash-completion 2>/dev/null)
    if set -q found[1]
        printf '%s\n' $found
    else
        __fish_complete_path $current
    end
end

complete -c cdc-relay -f -a '(__cdc_relay)'
