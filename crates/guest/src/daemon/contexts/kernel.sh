# The interpreter of a bash context. Its standard input is the channel; commands of cells never see it.
exec {__channel}<&0 </dev/null
__tell() { printf '%d\n%s' "${#1}" "$1" >&"$__channel"; }
# What is left of an interrupted cell is not run: each next command of it returns from where it is.
__interrupt() {
    __interrupted=1
    shopt -s extdebug
    trap 'return 2' DEBUG
}
__run() {
    __interrupted=
    trap __interrupt INT
    __cell "$@"
    __status=$?
    trap - DEBUG
    shopt -u extdebug
    trap : INT
}
# The positional parameters of a cell are its own.
__cell() {
    set --
    eval "$__code" {__channel}<&-
}
trap : INT
__tell '{"event":"ready"}'
while IFS=' ' read -r __kind __count __length <&"$__channel"; do
    [[ $__kind == cell ]] || continue
    __code=
    ((__length == 0)) || LC_ALL=C IFS= read -r -d '' -N "$__length" __code <&"$__channel"
    __run
    if [[ $__interrupted ]]; then
        __tell '{"event":"error","name":"KeyboardInterrupt","value":"","traceback":["KeyboardInterrupt"]}'
        __tell '{"event":"end","status":"interrupted"}'
    elif ((__status)); then
        __tell '{"event":"error","name":"ExitStatus","value":"'"$__status"'","traceback":["the last command ended with status '"$__status"'"]}'
        __tell '{"event":"end","status":"error"}'
    else
        __tell '{"event":"end","status":"success"}'
    fi
done
