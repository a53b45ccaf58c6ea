//! How the code of each language is run.

use super::super::http::Refusal;

/// Where the file with the code goes in the command of an interpreter that a template brings.
const FILE: &str = "{file}";

/// Runs the code in the file that is its argument, as if it were started by hand in its working directory.
pub(in super::super) const COLD_PY: &str = concat!(include_str!("run.py"), include_str!("run_file.py"));
/// An interpreter that is ready, and then does the same.
pub(in super::super) const ZYGOTE_PY: &str = concat!(include_str!("run.py"), include_str!("zygote.py"));

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Language {
    Python,
    Bash,
    JavaScript,
    /// One that the sandbox's template brings, with its command.
    Other {
        name: String,
        interpreter: Vec<String>,
    },
}

impl Language {
    pub fn find(name: Option<&str>, interpreter: Option<Vec<String>>) -> Result<Self, Refusal> {
        let name = name.unwrap_or("python");
        if let Some(interpreter) = interpreter {
            let has_zero = interpreter.iter().any(|argument| argument.contains('\0'));
            if interpreter.first().is_none_or(String::is_empty) || has_zero {
                return Err(Refusal::invalid("the interpreter is not a command"));
            }
            return Ok(Self::Other { name: name.to_owned(), interpreter });
        }
        match name.to_ascii_lowercase().as_str() {
            "python" | "python3" | "py" => Ok(Self::Python),
            "bash" | "sh" | "shell" => Ok(Self::Bash),
            "javascript" | "js" | "node" => Ok(Self::JavaScript),
            _ => {
                let shown: String = name.chars().take(80).collect();
                let message = format!("the language {shown:?} is not known");
                Err(Refusal::new(422, "language_unknown", message)
                    .hint("python, bash and javascript are; a template can bring others"))
            }
        }
    }

    pub fn name(&self) -> &str {
        match self {
            Self::Python => "python",
            Self::Bash => "bash",
            Self::JavaScript => "javascript",
            Self::Other { name, .. } => name,
        }
    }

    /// What the file with the code is called.
    pub fn file_name(&self) -> &'static str {
        match self {
            Self::Python => "main.py",
            Self::Bash => "main.sh",
            Self::JavaScript => "main.js",
            Self::Other { name, .. } => match name.as_str() {
                "typescript" => "main.ts",
                "ruby" => "main.rb",
                "perl" => "main.pl",
                "php" => "main.php",
                "r" | "R" => "main.R",
                "lua" => "main.lua",
                "go" => "main.go",
                _ => "main",
            },
        }
    }

    /// The command as people would write it, for the journal.
    pub fn shown_command(&self, python: &str) -> Vec<String> {
        let file = self.file_name().to_owned();
        match self {
            Self::Python => vec![python.to_owned(), file],
            Self::Bash => vec!["bash".into(), file],
            Self::JavaScript => vec!["node".into(), file],
            Self::Other { interpreter, .. } => with_file(interpreter, &file),
        }
    }

    /// The command that runs the code in `file`.
    pub fn command(&self, python: &str, file: &str) -> Vec<String> {
        match self {
            Self::Python => vec![python.to_owned(), "-c".into(), COLD_PY.into(), file.to_owned()],
            Self::Bash => vec!["bash".into(), file.to_owned()],
            Self::JavaScript => vec!["node".into(), file.to_owned()],
            Self::Other { interpreter, .. } => with_file(interpreter, file),
        }
    }
}

fn with_file(interpreter: &[String], file: &str) -> Vec<String> {
    let mut command: Vec<String> = interpreter.iter().map(|argument| argument.replace(FILE, file)).collect();
    if !interpreter.iter().any(|argument| argument.contains(FILE)) {
        command.push(file.to_owned());
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interpreter_of_a_template_gets_the_file_where_it_wants_it() {
        let other = |interpreter: &[&str]| {
            let interpreter = interpreter.iter().map(|argument| (*argument).to_owned()).collect();
            Language::find(Some("ruby"), Some(interpreter)).unwrap().command("python3", "/f")
        };
        assert_eq!(other(&["ruby", "-w"]), ["ruby", "-w", "/f"]);
        assert_eq!(other(&["sh", "-c", "ruby {file} | cat"]), ["sh", "-c", "ruby /f | cat"]);
    }

    #[test]
    fn the_journal_has_the_command_without_what_makes_it_work() {
        assert_eq!(Language::Python.shown_command("python3"), ["python3", "main.py"]);
    }
}
