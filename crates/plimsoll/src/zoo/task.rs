//! What a network is trained to predict.

/// What a network is trained to predict, with the number of outputs it was published for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// One class per image.
    Classification(usize),
    /// One class per pixel.
    Segmentation(usize),
    /// The input itself.
    Reconstruction,
    /// One class per text: the number of classes and the vocabulary.
    TextClassification(usize, usize),
    /// The next token at every position, from a vocabulary of this size.
    NextToken(usize),
    /// The next values of a time series.
    Forecast(usize),
}

impl Task {
    /// Classes, or values of a forecast.
    pub(super) fn outputs(self) -> usize {
        match self {
            Task::Classification(outputs) | Task::Segmentation(outputs) | Task::TextClassification(outputs, _) => outputs,
            Task::NextToken(outputs) | Task::Forecast(outputs) => outputs,
            Task::Reconstruction => 0,
        }
    }

    /// The number of tokens in the input's vocabulary; 0 if the input is not text.
    pub(super) fn vocabulary(self) -> usize {
        match self {
            Task::TextClassification(_, vocabulary) | Task::NextToken(vocabulary) => vocabulary,
            Task::Classification(_) | Task::Segmentation(_) | Task::Reconstruction | Task::Forecast(_) => 0,
        }
    }
}
