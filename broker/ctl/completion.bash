# bash completion for remote_bp_ctl: its options and commands are those of its --help

_remote_bp_ctl()
{
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} words

    case $previous in
        --token-file | --credentials | --broker-ca | --tls-cert)
            mapfile -t COMPREPLY < <(compgen -f -- "$current")
            return
            ;;
        --broker | --dbname | --interval | --watch | --timeout | drain | undrain | forget | revoke)
            return
            ;;
    esac
    words=$(remote_bp_ctl --help 2>/dev/null | sed -nE 's/^  (-h, )?(--[a-z-]+|[a-z]+)([ =].*)?$/\2/p')
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}

complete -o filenames -F _remote_bp_ctl remote_bp_ctl
