# Completes `python -m pipelines …`. In bash or zsh: source pipelines/completion.sh
# Typer's own --install-completion is for programs; to a shell, `python -m pipelines` is a use of python.

if [ -n "$ZSH_VERSION" ]; then
    autoload -Uz compinit bashcompinit
    compinit -D
    bashcompinit
fi

_pipelines_complete() {
    [ "${COMP_WORDS[1]} ${COMP_WORDS[2]}" = "-m pipelines" ] || return
    local IFS=$'\n'
    COMPREPLY=($(env _PIPELINES_COMPLETE=complete_bash COMP_CWORD=$((COMP_CWORD - 2)) \
        COMP_WORDS="pipelines$IFS${COMP_WORDS[*]:3}" "${COMP_WORDS[0]}" -m pipelines))
}

# Where there is nothing of ours to say, file names.
complete -o default -F _pipelines_complete python
