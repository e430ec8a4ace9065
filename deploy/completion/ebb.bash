# bash completion for ebb, made by 'ebb completion bash'
_ebb()
{
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]} options=
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "help --help --version run check submit jobs status why watch errors results pause resume cancel retry rm workers drain model doctor " -- "$cur"))
        return
    fi
    [ "$command" = model ] && command="model ${COMP_WORDS[2]}"
    if [ "${COMP_WORDS[1]}" = model ] && [ "$COMP_CWORD" -eq 2 ]; then
        COMPREPLY=($(compgen -W "inspect bench" -- "$cur"))
        return
    fi
    case $prev in
    --model|--input|--output|--socket) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --precision) COMPREPLY=($(compgen -W "auto f32" -- "$cur")); return ;;
    --format) COMPREPLY=($(compgen -W "jsonl csv tsv lines" -- "$cur")); return ;;
    --output-format) COMPREPLY=($(compgen -W "jsonl npy" -- "$cur")); return ;;
    --floats) COMPREPLY=($(compgen -W "array base64" -- "$cur")); return ;;
    --on-long) COMPREPLY=($(compgen -W "truncate error" -- "$cur")); return ;;
    esac
    case $command in
    "run") options="--help --name --model --precision --input --format --field --id --keep --limit --max-record --on-long --output --output-format --floats --part-bytes --max-errors --weight --priority --min-workers --max-workers --lease --commit --stall --micro-batch --micro-batch-tokens --workers --lanes --memory --retry --force --quiet --json" ;;
    "check") options="--help --name --model --precision --input --format --field --id --keep --limit --max-record --on-long --output --output-format --floats --part-bytes --max-errors --weight --priority --min-workers --max-workers --lease --commit --stall --micro-batch --micro-batch-tokens --force --json" ;;
    "submit") options="--help --name --model --precision --input --format --field --id --keep --limit --max-record --on-long --output --output-format --floats --part-bytes --max-errors --weight --priority --min-workers --max-workers --lease --commit --stall --micro-batch --micro-batch-tokens --force --socket --json" ;;
    "jobs") options="--help --all --json --socket" ;;
    "status") options="--help --json --socket" ;;
    "why") options="--help --json --socket" ;;
    "watch") options="--help --json --socket" ;;
    "errors") options="--help --limit --code --json --socket" ;;
    "results") options="--help --cat --json --socket" ;;
    "pause") options="--help --json --socket" ;;
    "resume") options="--help --max-errors --json --socket" ;;
    "cancel") options="--help --json --socket" ;;
    "retry") options="--help --json --socket" ;;
    "rm") options="--help --force --json --socket" ;;
    "workers") options="--help --json --socket" ;;
    "drain") options="--help --stay --json --socket" ;;
    "model inspect") options="--help --json" ;;
    "model bench") options="--help --lanes --seconds --json" ;;
    "doctor") options="--help --json --socket" ;;
    esac
    case $cur in
    -*) COMPREPLY=($(compgen -W "$options" -- "$cur")) ;;
    *) COMPREPLY=($(compgen -f -- "$cur")) ;;
    esac
}
complete -o filenames -F _ebb ebb
