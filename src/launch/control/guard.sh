# Reads from its launcher, line by line:
#   mark NAME        the variable that workers and all that they start inherit
#   above PID...     to whom the system may give the workers' orphans
#   + PID, - PID     a group of workers that is to be ended, that is no more
#   .                nothing is left to be done
# A launcher that ends without the last was killed: whatever is left of its workers is ended.
trap '' HUP INT QUIT TERM USR1 USR2
PATH=/usr/bin:/bin
mark= above= groups=
while read -r sign rest; do
    case $sign in
    mark) mark=$rest ;;
    above) above=" $rest " ;;
    +) groups="$groups $rest" ;;
    -)
        left=
        for each in $groups; do [ "$each" = "$rest" ] || left="$left $each"; done
        groups=$left
        ;;
    .) exit ;;
    esac
done

# Whether a process has the variable. BusyBox's grep ends at the first NUL.
is_marked() {
    [ "$mark" ] && tr '\000' '\n' <"/proc/$1/environ" | grep -q "^$mark="
}

# Finds, as Linux lists them, who lives of the workers ($groups), of those that are marked and have
# a parent in $above, and of all that descend from them.
look() {
    pairs= found=' ' want=
    for word in $(cd /proc && grep -E '^(State|PPid):' [0-9]*/status); do
        case $word in
        */status:State:) want=state && continue ;;
        */status:PPid:) want=parent id=${word%%/*} && continue ;;
        esac
        case $want in
        state) state=$word ;;
        parent)
            # Who has ended and was not waited for is still listed.
            case $state in [!ZX])
                pairs="$pairs $id:$word"
                case "$groups " in *" $id "*) found="$found$id " ;; esac
                case $above in *" $word "*) is_marked "$id" && found="$found$id " ;; esac
                ;;
            esac
            ;;
        esac
        want=
    done
    grows=yes
    while [ "$grows" ]; do
        grows=
        for pair in $pairs; do
            case $found in *" ${pair%:*} "*) continue ;; esac
            case $found in *" ${pair#*:} "*) found="$found${pair%:*} " grows=yes ;; esac
        done
    done
}

kill_found() {
    for each in $found; do kill -s KILL "$each"; done
}

# First those that need no question.
variable=$mark mark=
look
for group in $groups; do kill -s KILL -- "-$group"; done
kill_found
groups= mark=$variable
[ "$mark" ] || exit
# Twice nobody is enough: who was being started at the first time is there at the second.
quiet=0 rounds=0
while [ $quiet -lt 2 ] && [ $rounds -lt 100 ]; do
    look
    kill_found
    quiet=$((quiet + 1)) rounds=$((rounds + 1))
    [ "$found" = ' ' ] || quiet=0
    sleep 0.05 || sleep 1
done
