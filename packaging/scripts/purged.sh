# Run by dpkg on a purge. The program is gone; when it was removed it left lists of what the installation had made.
lists=/etc/pydockershim/purge
if [ -f $lists/files ]; then
    while read -r digest path; do
        if [ ! -e "$path" ]; then
            continue
        elif ! echo "$digest  $path" | sha256sum --check --status; then
            echo "keep  $path, which was changed after the installation"
        elif [ "$path" = /etc/docker/daemon.json ] && [ -f $lists/daemon.json ]; then
            echo "write $path as it was"
            # Not by a rename: it may be a link, and keeps its mode.
            cat $lists/daemon.json >"$path"
        else
            echo "remove $path"
            rm "$path"
        fi
    done <$lists/files
    while read -r directory; do
        if [ -d "$directory" ]; then rmdir --ignore-fail-on-non-empty "$directory"; fi
    done <$lists/directories
    rm -r $lists /etc/pydockershim/installed.json
fi
