//! `plimsoll completions` and `plimsoll man`: shell completions and manual pages, from the definitions of the commands.

use crate::output::say;
use crate::{Command, command_line};
use anyhow::{Context, Result};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Print completions for a shell
#[derive(Args)]
pub struct Completions {
    /// Shell, such as bash, zsh or fish
    shell: clap_complete::Shell,
}

impl Command for Completions {
    const NAME: &'static str = "completions";

    fn run(&self) -> Result<ExitCode> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command_line(), "plimsoll", &mut script);
        say(&String::from_utf8_lossy(&script))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Print the manual page, or write those of all commands to a folder
#[derive(Args)]
pub struct Man {
    /// Folder for plimsoll.1, plimsoll-train.1 and so on, such as ~/.local/share/man/man1
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

impl Command for Man {
    const NAME: &'static str = "man";

    fn run(&self) -> Result<ExitCode> {
        match &self.out {
            Some(folder) => write_pages(folder)?,
            None => say(&String::from_utf8_lossy(&page(command_line())?))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn page(command: clap::Command) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    Ok(page)
}

/// A page for the program, and one for each command.
fn write_pages(folder: &Path) -> Result<()> {
    let write = || {
        std::fs::create_dir_all(folder)?;
        clap_mangen::generate_to(command_line(), folder)
    };
    write().with_context(|| format!("cannot write to {}", folder.display()))
}
