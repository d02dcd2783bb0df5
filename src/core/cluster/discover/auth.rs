//! How the ranks recognize each other: the job's token, and MUNGE.

use crate::cluster::discover::token_file;
use crate::cluster::meeting::Scope;
use crate::cluster::overrides;
use crate::environment::{Environment, ReadError};
use crate::error::{Error, Reason};
use crate::launcher::context::Context;
use crate::launcher::placement::Placement;
use crate::value::munge::Munge;
use crate::value::token::Token;

/// Returns how to reach MUNGE, if the ranks authenticate with it.
pub(super) fn munge(environment: &Environment) -> Result<Option<Munge>, Error> {
    of_security(environment, overrides::AUTH, "set it to munge on all ranks")?;
    Ok(environment.setting(overrides::AUTH)?.map(|munge| munge.value))
}

/// Returns a setting that protects the meeting. One that is set and blank is an error, because the
/// user who set it believes that the meeting is protected.
fn of_security<'a>(
    environment: &'a Environment,
    name: &'static str,
    remedy: &'static str,
) -> Result<Option<&'a str>, Error> {
    let refuse = |reason| Error::new(reason, format!("{remedy}, or unset {name}")).of(name);
    match environment.get_str(name) {
        // No part of a secret belongs into an error.
        Err(ReadError::NotUnicode { .. }) if name == overrides::TOKEN => {
            Err(refuse(Reason::NotUnicode))
        }
        Err(error) => Err(Error::reading_setting(error)),
        Ok(text) => match text.filter(|text| !text.trim().is_empty()) {
            None if environment.get(name).is_some() => Err(refuse(Reason::BlankSecurity)),
            text => Ok(text),
        },
    }
}

/// Returns the job's token, and whether other jobs may have it too.
pub(super) fn token(
    environment: &Environment,
    placement: &Placement,
    context: Option<&Context>,
) -> Result<(Token, Scope), Error> {
    let hint = "set it to what `openssl rand -hex 32` prints, on all ranks";
    let token = of_security(environment, overrides::TOKEN, hint)?;
    let hint = "name the file that holds the secret";
    let file = of_security(environment, overrides::TOKEN_FILE, hint)?;
    match (token, file) {
        (Some(_), Some(path)) => {
            let reason = Reason::TokenFile(format!("{} is set too", overrides::TOKEN));
            let error = Error::new(reason, "unset one of them");
            return Err(error.of(overrides::TOKEN_FILE).found(path));
        }
        (Some(text), None) => return Ok((Token::new(text), Scope::User)),
        (None, Some(path)) => return Ok((token_file::read(path)?, Scope::User)),
        (None, None) => {}
    }
    let of_context = context.and_then(|context| context.token.clone()).map(Token::new);
    let of_job = || placement.job.as_ref().map(|job| Token::of_job(&job.value));
    Ok((of_context.or_else(of_job).unwrap_or_default(), Scope::Job))
}
