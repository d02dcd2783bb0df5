//! `mpienv completions`: prints the completion script of a shell.

use clap_complete::Shell;

use super::{Failure, stream};
use mpienv_core::seam::Placeholders;

pub(crate) fn run(mut command: clap::Command, shell: Shell) -> Result<(), Failure> {
    // Generates into memory first, because clap_complete panics if it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "mpienv", &mut script);
    let script = with_placeholders(shell, &String::from_utf8_lossy(&script));
    Ok(stream::print(script.as_bytes())?)
}

/// Adds the placeholders of `--template`, which clap_complete cannot know, to the words of the
/// command.
fn with_placeholders(shell: Shell, script: &str) -> String {
    let prefixes = [
        ("first_node", "keeps the word on node 0 only"),
        ("other_nodes", "keeps it on the others only"),
    ];
    let placeholders: Vec<_> = Placeholders::names().chain(prefixes).collect();
    let each = |form: fn(&str, &str) -> String| {
        let form = |(name, meaning): &(&str, &str)| form(name, &meaning.replace('`', ""));
        placeholders.iter().map(form).collect::<String>()
    };
    match shell {
        Shell::Bash => {
            let start = "    prev=\"$3\"\n";
            let more = BASH.replace("NAMES", &each(|name, _| format!(" {{{name}}}")));
            script.replacen(start, &format!("{start}{more}"), 1)
        }
        Shell::Zsh => {
            let end = "if [ \"$funcstack[1]\" = \"_mpienv\" ]";
            let script = script
                .replace("and its arguments:_default' \\", "and its arguments:_mpienv_words' \\");
            let more = ZSH.replace("NAMES", &each(|name, _| format!(" {name}")));
            script.replacen(end, &format!("{more}{end}"), 1)
        }
        Shell::Fish => {
            let line = |name: &str, meaning: &str| {
                let meaning = meaning.replace('\'', "\\'");
                format!("        \"$before\"'{{{name}}}'\\t'{meaning}' \\\n")
            };
            script.to_owned() + &FISH.replace("        NAMES\n", &each(line))
        }
        _ => script.to_owned(),
    }
}

const BASH: &str = r#"    if [[ "$cur" == "{"* && " ${COMP_WORDS[*]:0:COMP_CWORD} " == *" --template "* ]]; then
        COMPREPLY=( $(compgen -W "NAMES" -- "$cur") )
        return 0
    fi
"#;

/// zsh removes an opening brace from the word that it completes, unless the brace is quoted.
const ZSH: &str = r#"(( $+functions[_mpienv_words] )) ||
_mpienv_words() {
    local -a names=(NAMES)
    if (( ! $+opt_args[--template] )); then
        _normal
    elif [[ $PREFIX == *'{'* ]]; then
        compset -P '*='
        compadd -- "{"${^names}"}"
    elif [[ $LBUFFER == *'{'[a-z_]# ]]; then
        compset -P '*='
        compadd -Q -S '' -- ${^names}"}"
    else
        _normal
    fi
}

"#;

/// The part of a word before the placeholder, such as `--rank=`, belongs to what fish inserts.
const FISH: &str = r#"
function __fish_mpienv_placeholders
    set -l before (commandline -ct | string replace -r "^['\"]" '' | string replace -r '\{[^{]*$' '')
    printf '%s\n' \
        NAMES

end

complete -c mpienv -n "__fish_mpienv_using_subcommand exec launch; and contains -- --template (commandline -opc); and string match -q '*{*' -- (commandline -ct)" -a "(__fish_mpienv_placeholders)"
"#;
