"""Where the frames of a pipeline come from: videos and cameras, folders of pictures, and what others bring."""
