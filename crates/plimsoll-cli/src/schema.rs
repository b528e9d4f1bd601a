//! `plimsoll schema`: the JSON schema of configurations, for editors.

use crate::Command;
use crate::output::print;
use anyhow::Result;
use clap::Args;
use std::process::ExitCode;

/// Print the JSON schema of configurations, with which editors complete and check them
#[derive(Args)]
pub struct Schema {}

impl Command for Schema {
    const NAME: &'static str = "schema";

    fn run(&self) -> Result<ExitCode> {
        print(&plimsoll::config::schema())?;
        Ok(ExitCode::SUCCESS)
    }
}
