# The interpreter of a bash context. Its standard input is the channel; commands of cells never get it.
# An interrupt ends the cell where it is; within functions it ends the innermost, because bash knows no more.
exec {__channel}<&0 </dev/null
__tell() { printf '%d\n%s' "${#1}" "$1" >&"$__channel"; }
__cell() {
    set --
    trap '__interrupted=1; return 130' INT
    eval "$__code" {__channel}<&-
}
trap : INT
__tell '{"event":"ready"}'
while IFS=' ' read -r __kind __count __length __stale <&"$__channel"; do
    [[ $__kind == cell ]] || continue
    __code= __interrupted=
    ((__length == 0)) || LC_ALL=C IFS= read -r -d '' -N "$__length" __code <&"$__channel"
    __cell
    __status=$?
    trap : INT
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
